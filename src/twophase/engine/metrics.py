"""The engine's statistics: a trace of steps, and counts over its life. What happened to a request is in its output."""

from collections import deque
from dataclasses import dataclass
from typing import final

from twophase.cache.manager import CacheStats
from twophase.core.outputs import FinishReason, StepTrace
from twophase.core.plan import StepPlan
from twophase.scheduling.scheduler import Scheduler

TraceChunk = tuple[str, int, int, int]  # request id, completion index, start position, tokens


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counts are since the engine was made; `num_waiting`, `num_running` and `cache` are of now.

    Attributes:
        num_steps: Steps that ran.
        busy_s: Time spent in them.
        num_computed_tokens: Tokens run through the model, recomputed ones again.
        num_output_tokens: Tokens sampled.
        num_preemptions: Times a sequence lost its blocks.
        num_finished, num_aborted, num_failed: Completions by how they ended: 'stop' or 'length', 'abort', 'error'.
        num_draft_tokens, num_accepted_tokens: Tokens guessed and verified, and those that the model confirmed.
    """

    num_steps: int
    busy_s: float
    num_computed_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_finished: int
    num_aborted: int
    num_failed: int
    num_waiting: int
    num_running: int
    cache: CacheStats
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafts that were confirmed; 0 before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The engine's clock at the marks of one step."""

    start_s: float
    scheduled_s: float
    ran_s: float


@final
class StatLogger:
    """Keeps the newest steps' traces and the counts. Only the engine writes it, once per step or completion."""

    def __init__(self, max_steps: int | None) -> None:
        self.steps: deque[StepTrace] = deque(maxlen=max_steps)
        self.num_output_tokens = 0
        self._num_steps = 0
        self._busy_s = 0.0
        self._num_computed_tokens = 0
        self._num_preemptions = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._num_ended: dict[FinishReason, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def note_end(self, reason: FinishReason) -> None:
        self._num_ended[reason] += 1

    def note_step(
        self,
        plan: StepPlan,
        chunks: tuple[TraceChunk, ...],
        preempted: tuple[tuple[str, int], ...],
        finished: tuple[tuple[str, int], ...],
        times: StepTimes,
        end_s: float,
        scheduler: Scheduler,
        drafts: tuple[int, int] = (0, 0),
    ) -> None:
        """`drafts`: how many the step verified, and how many were confirmed."""
        num_draft_tokens, num_accepted_tokens = drafts
        cache = scheduler.cache.stats()
        self.steps.append(
            StepTrace(
                step=self._num_steps,
                start_s=times.start_s,
                schedule_s=times.scheduled_s - times.start_s,
                run_s=times.ran_s - times.scheduled_s,
                update_s=end_s - times.ran_s,
                chunks=chunks,
                num_decodes=plan.num_decodes,
                preempted=preempted,
                finished=finished,
                num_waiting=scheduler.num_waiting,
                num_running=scheduler.num_running,
                blocks_in_use=cache.num_in_use,
                blocks_cached=cache.num_cached,
                blocks_free=cache.num_free,
                blocks_swapped_out=len(plan.swaps_out),
                blocks_swapped_in=len(plan.swaps_in),
                slots_in_use=cache.num_slots_in_use,
                num_verifying=plan.num_verifying,
                num_draft_tokens=num_draft_tokens,
                num_accepted_tokens=num_accepted_tokens,
            )
        )
        self._num_steps += 1
        self._busy_s += end_s - times.start_s
        self._num_computed_tokens += plan.num_tokens
        self._num_preemptions += len(preempted)
        self._num_draft_tokens += num_draft_tokens
        self._num_accepted_tokens += num_accepted_tokens

    def stats(self, scheduler: Scheduler) -> EngineStats:
        ended = self._num_ended
        return EngineStats(
            num_steps=self._num_steps,
            busy_s=self._busy_s,
            num_computed_tokens=self._num_computed_tokens,
            num_output_tokens=self.num_output_tokens,
            num_preemptions=self._num_preemptions,
            num_finished=ended["stop"] + ended["length"],
            num_aborted=ended["abort"],
            num_failed=ended["error"],
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            cache=scheduler.cache.stats(),
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted_tokens,
        )
