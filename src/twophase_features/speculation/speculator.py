"""Speculative decoding in the engine: which drafter guesses, for which sequences, whether it pays, how it went."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

from twophase.core.plan import SampledToken, ScheduledChunk, StepPlan
from twophase.engine._isolation import isolate
from twophase_features.speculation.drafters import Drafter, DraftRequest, usable
from twophase_features.speculation.gate import SpeculationGate

logger = logging.getLogger(__name__)


@final
class Speculator:
    """Asks the drafter, and counts. Only the engine uses it.

    Args:
        drafter: Guesses tokens. What it returns or raises is taken for what it is, a guess: it can cost time, no more.
        max_drafts: Guesses a sequence may have in a step.
        gate: Decides whether guessing pays; None: always guess.

    Attributes:
        num_drafted, num_accepted: By place in a run (0 is the first draft): drafts verified, and confirmed.
    """

    def __init__(self, drafter: Drafter, max_drafts: int, gate: SpeculationGate | None) -> None:
        self.drafter = drafter
        self.max_drafts = max_drafts
        self.gate = gate
        self.num_drafted: Counter[int] = Counter()
        self.num_accepted: Counter[int] = Counter()
        self._has_complained = False

    @property
    def is_on(self) -> bool:
        return self.gate is None or self.gate.is_drafting

    def draft(
        self, plan: StepPlan, request_of: Callable[[ScheduledChunk], DraftRequest], vocab_size: int
    ) -> dict[int, list[int]]:
        """Drafts by seq_id for the decodes of a plan that has room for them."""
        ready = isolate(self._note_plan, [plan])[0]
        if isinstance(ready, Exception):
            self._complain(ready)
            return {}
        requests = [request_of(chunk) for chunk in plan.chunks if chunk.num_drafts]
        propose = partial(self._propose, vocab_size)
        drafts = {}
        for request, proposal in zip(requests, isolate(propose, requests), strict=True):
            if isinstance(proposal, Exception):
                self._complain(proposal)
            elif proposal:
                drafts[request.chunk.seq_id] = proposal
        return drafts

    def _note_plan(self, plans: Sequence[StepPlan]) -> list[None]:
        for plan in plans:
            self.drafter.note_plan(plan)
        return [None] * len(plans)

    def _propose(self, vocab_size: int, requests: Sequence[DraftRequest]) -> list[list[int]]:
        proposals = self.drafter.propose(requests)
        if len(proposals) != len(requests):
            raise ValueError(f"{len(requests)} requests for drafts got {len(proposals)} answers.")
        drafts = []
        for request, proposal in zip(requests, proposals, strict=True):
            tokens = usable(proposal[: request.chunk.num_drafts], vocab_size, request.stop_token_ids)
            drafts.append(tokens[: request.num_allowed(tokens)])
        return drafts

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        try:
            self.drafter.forget(seq_id)
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        # Once: what fails at one step will mostly fail at thousands.
        if not self._has_complained:
            logger.warning("drafting failed, and those steps go without: %s: %s", type(error).__name__, error)
        self._has_complained = True

    def note_results(
        self, plan: StepPlan, runs: Mapping[int, tuple[SampledToken, ...]], elapsed_s: float
    ) -> tuple[int, int]:
        """Count what became of a step that took `elapsed_s`, by seq_id; returns drafts and accepted ones."""
        is_decodes_alone = plan.num_decodes + plan.num_verifying == len(plan.chunks)
        if self.gate is not None and is_decodes_alone:
            self.gate.note_step(elapsed_s, sum(map(len, runs.values())))
        num_drafted = num_accepted = 0
        for chunk in plan.chunks:
            if chunk.num_drafts and chunk.seq_id in runs:
                accepted = len(runs[chunk.seq_id]) - 1
                self.num_drafted.update(range(chunk.num_drafts))
                self.num_accepted.update(range(accepted))
                num_drafted, num_accepted = num_drafted + chunk.num_drafts, num_accepted + accepted
        return num_drafted, num_accepted
