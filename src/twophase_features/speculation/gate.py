"""Measures whether speculative decoding pays.

Verifying drafts makes steps longer, and accepted drafts make them fewer. The balance depends on the text, the sampling,
the batch and the machine, and changes with the running requests. So the engine measures both variants in turn, runs the
faster one, and repeats the trial: soon at first, then less and less often.
"""

from typing import final

TRIAL_STEPS = 8  # per variant; the batch hardly changes meanwhile
WARMUP_STEPS = 2  # not measured: a drafter may have to catch up first
FIRST_REST_STEPS = 32  # until the next trial
MAX_REST_STEPS = 1024  # so that at most one step in 128 runs the slower variant


@final
class SpeculationGate:
    """Decides step by step. Deterministic: it uses only the durations passed to it.

        trial (8 steps one way, 8 the other) -> rest (32 steps the cheaper way) -> trial -> rest (64) -> ... 1024
                                                 |  back to 32 as soon as a trial turns out otherwise

    Attributes:
        is_drafting: Whether the next step should have drafts.
    """

    def __init__(self) -> None:
        self.is_drafting = True
        self._num_left = TRIAL_STEPS
        self._stage = 0  # 0: first half of a trial, 1: second half, 2: rest
        self._rest_steps = FIRST_REST_STEPS
        self._winner: bool | None = None
        self._cost: dict[bool, tuple[float, int]] = {}  # way -> seconds and tokens of the trial

    def note_step(self, elapsed_s: float, num_tokens: int) -> None:
        """A step of decodes alone, with drafts if `is_drafting`, took `elapsed_s` and yielded `num_tokens`."""
        if self._stage < 2 and self._num_left <= TRIAL_STEPS - WARMUP_STEPS:
            spent_s, yielded = self._cost.get(self.is_drafting, (0.0, 0))
            self._cost[self.is_drafting] = (spent_s + elapsed_s, yielded + num_tokens)
        self._num_left -= 1
        if self._num_left:
            return
        if self._stage == 0:
            self._stage, self._num_left, self.is_drafting = 1, TRIAL_STEPS, not self.is_drafting
        elif self._stage == 1:
            self._judge()
        else:
            self._stage, self._num_left, self._cost = 0, TRIAL_STEPS, {}

    def _judge(self) -> None:
        """End the trial: choose the faster mode for a while, and for longer if it won the last trial too."""
        (with_s, with_tokens), (without_s, without_tokens) = self._cost[True], self._cost[False]
        winner = with_s * without_tokens < without_s * with_tokens
        is_confirmed = winner == self._winner
        self._rest_steps = min(2 * self._rest_steps, MAX_REST_STEPS) if is_confirmed else FIRST_REST_STEPS
        self._winner = self.is_drafting = winner
        self._stage, self._num_left = 2, self._rest_steps
