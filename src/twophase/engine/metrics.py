"""The engine's statistics: a trace of steps, and counts over its life. The metrics of a request are in its output."""

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from twophase.cache.allocator import CacheStats
from twophase.core.plan import StepPlan, StepTrace
from twophase.core.request import FinishReason
from twophase.engine.request_state import RequestState
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence

TraceChunk = tuple[str, int, int, int]  # request id, completion index, start position, tokens


@runtime_checkable
class Waiting(Protocol):
    """A request that is not scheduled yet, ended or not: `RequestState`, or a simulation's substitute."""

    @property
    def first_scheduled_s(self) -> float | int | None: ...
    @property
    def finished_s(self) -> float | int | None: ...


@final
class WaitingRequests:
    """Requests that were never scheduled, oldest first. Adding one and looking at the oldest take logarithmic time: a
    request that has left is dropped when it comes to the front.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float | int, int, Waiting]] = []  # the number breaks ties
        self._num_added = 0

    def add(self, arrival_s: float | int, request: Waiting) -> None:
        heapq.heappush(self._heap, (arrival_s, self._num_added, request))
        self._num_added += 1

    def oldest_s(self, now_s: float | int) -> float | None:
        """How long the oldest has waited, in seconds; None if no request waits."""
        while self._heap and _has_left(self._heap[0][2]):
            heapq.heappop(self._heap)
        return max(0.0, float(now_s - self._heap[0][0])) if self._heap else None


def _has_left(request: Waiting) -> bool:
    return request.first_scheduled_s is not None or request.finished_s is not None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counts begin at the engine's construction; `num_waiting`, `num_running` and `cache` are of now.

    Attributes:
        num_steps: Steps that ran.
        busy_s: Time spent in them.
        num_computed_tokens: Tokens run through the model, recomputed ones again.
        num_output_tokens: Tokens sampled.
        num_preemptions: Times a sequence lost its blocks.
        num_finished, num_aborted, num_failed: Completions by finish reason: 'stop' or 'length', 'abort', 'error'.
        num_draft_tokens, num_accepted_tokens: Drafts that the model verified, and drafts that it accepted.
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
        """Share of the verified drafts that were accepted; 0 before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that has run, and its sequences by name, taken before any of them ends.

    Attributes:
        chunks, preempted: See `StepTrace`.
        start_s, scheduled_s, ran_s: The engine's clock when the step began, was planned, and had run.
    """

    plan: StepPlan
    chunks: tuple[TraceChunk, ...]
    preempted: tuple[tuple[str, int], ...]
    start_s: float
    scheduled_s: float
    ran_s: float

    def count_drafts(self, results: Mapping[int, Sized | Exception]) -> tuple[int, int]:
        """Drafts that were verified, and that were accepted; `results` as of `StatLogger.note_step`."""
        num_drafts = num_accepted = 0
        for chunk in self.plan.chunks[self.plan.num_decodes :][: self.plan.num_verifying]:
            result = results[chunk.seq_id]
            if not isinstance(result, Exception):
                num_drafts, num_accepted = num_drafts + chunk.num_drafts, num_accepted + len(result) - 1
        return num_drafts, num_accepted


def record_step(
    plan: StepPlan,
    sequences: Mapping[int, Sequence],
    requests: Mapping[str, RequestState],
    times: tuple[float, float, float],
) -> StepRecord:
    """The record of a step that has run; first admissions and preemptions go into the metrics of their requests."""
    for chunk in plan.prefills:
        sequence = sequences[chunk.seq_id]
        state = requests[sequence.request.request_id]
        if state.first_scheduled_s is None:
            state.first_scheduled_s, state.num_cached_tokens = times[1], sequence.num_cached_tokens
    victims = [sequences[seq_id] for seq_id in plan.preempted]
    for victim in victims:
        requests[victim.request.request_id].num_preemptions += 1
    pairs = ((chunk, sequences[chunk.seq_id]) for chunk in plan.chunks)
    chunks = tuple((each.request.request_id, each.index, c.start, len(c.token_ids)) for c, each in pairs)
    return StepRecord(plan, chunks, tuple((each.request.request_id, each.index) for each in victims), *times)


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
        record: StepRecord,
        results: Mapping[int, Sized | Exception],
        finished: tuple[tuple[str, int], ...],
        end_s: float,
        scheduler: Scheduler,
    ) -> None:
        """A step is over. `results` has the tokens of each chunk, or its error, by seq_id."""
        plan, (num_draft_tokens, num_accepted_tokens) = record.plan, record.count_drafts(results)
        cache = scheduler.cache.stats()
        num_looked_up, num_found = self._hits_before
        self._hits_before = (cache.num_queried_tokens, cache.num_hit_tokens)
        self._usage_peak = max(self._usage_peak, cache.num_in_use / cache.num_blocks)
        self.steps.append(
            StepTrace(
                step=self._num_steps,
                start_s=record.start_s,
                schedule_s=record.scheduled_s - record.start_s,
                run_s=record.ran_s - record.scheduled_s,
                update_s=end_s - record.ran_s,
                chunks=record.chunks,
                num_decodes=plan.num_decodes,
                preempted=record.preempted,
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
        self._busy_s += end_s - record.start_s
        self._num_computed_tokens += plan.num_tokens
        self._num_preemptions += len(record.preempted)
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


def named_tables(sequences: Collection[Sequence]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Block ids and computed tokens of each running sequence, by request id ('id.index' where a prompt forked).

    -1 stands for a block that left the sliding window and was freed.
    """
    forked = {sequence.request.request_id for sequence in sequences if sequence.index}
    tables = {}
    for sequence in sequences:
        if sequence.table is not None:
            name = sequence.request.request_id
            name = f"{name}.{sequence.index}" if name in forked else name
            tables[name] = (tuple(sequence.table.block_ids), sequence.num_computed_tokens)
    return tables
