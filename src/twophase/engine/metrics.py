"""The engine's statistics: a trace of steps, and counts over its life. What happened to a request is in its output."""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from twophase.cache.allocator import CacheStats
from twophase.core.outputs import FinishReason, StepTrace
from twophase.core.plan import StepPlan
from twophase.scheduling.scheduler import Scheduler

TraceChunk = tuple[str, int, int, int]  # request id, completion index, start position, tokens


@runtime_checkable
class Waiting(Protocol):
    """A request that is not scheduled yet, ended or not: `RequestState`, or what a simulation has in its place."""

    @property
    def first_scheduled_s(self) -> float | int | None: ...
    @property
    def finished_s(self) -> float | int | None: ...


@final
class WaitingRequests:
    """Requests that were never scheduled, oldest first. Adding one and looking at the oldest take logarithmic time: who
    left is dropped when it comes to the front.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float | int, int, Waiting]] = []  # the number decides between equal arrivals
        self._num_added = 0

    def add(self, arrival_s: float | int, request: Waiting) -> None:
        heapq.heappush(self._heap, (arrival_s, self._num_added, request))
        self._num_added += 1

    def oldest_s(self, now_s: float | int) -> float | None:
        """How long the oldest has waited; None: nobody waits."""
        while self._heap and _has_left(self._heap[0][2]):
            heapq.heappop(self._heap)
        return max(0.0, float(now_s - self._heap[0][0])) if self._heap else None


def _has_left(request: Waiting) -> bool:
    return request.first_scheduled_s is not None or request.finished_s is not None


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
        kv_cache_usage_peak: Share of the blocks in use after the step that had most of them.
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
    kv_cache_usage_peak: float = 0.0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that a sequence holds now; vLLM's kv_cache_usage_perc."""
        return self.cache.num_in_use / self.cache.num_blocks

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
        self._usage_peak = 0.0
        self._hits_before = (0, 0)  # looked up and found, before the step
        self.waiting = WaitingRequests()
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
        num_looked_up, num_found = self._hits_before
        self._hits_before = (cache.num_queried_tokens, cache.num_hit_tokens)
        self._usage_peak = max(self._usage_peak, cache.num_in_use / cache.num_blocks)
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
                blocks_offloaded=plan.num_offloaded,
                blocks_loaded=len(plan.loaded),
                slots_in_use=cache.num_slots_in_use,
                num_verifying=plan.num_verifying,
                num_draft_tokens=num_draft_tokens,
                num_accepted_tokens=num_accepted_tokens,
                prefix_cache_queries=cache.num_queried_tokens - num_looked_up,
                prefix_cache_hits=cache.num_hit_tokens - num_found,
                queue_age_s=self.waiting.oldest_s(end_s),
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
            kv_cache_usage_peak=self._usage_peak,
        )
