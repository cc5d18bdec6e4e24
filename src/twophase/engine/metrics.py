"""The engine's statistics: a trace of steps, and counts over its life. The metrics of a request are in its output."""

from collections import deque
from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from twophase.cache.allocator import CacheStats
from twophase.core.plan import StepPlan, StepTrace
from twophase.core.request import FinishReason
from twophase.engine.request_state import RequestState
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence, SequenceStatus


@dataclass(slots=True)
class EngineStats:
    """A snapshot. Counts begin at the engine's construction; `num_waiting`, `num_running` and `cache` are of now.

    Attributes:
        num_steps, busy_s: Steps that ran, and the time spent in them.
        num_computed_tokens, num_output_tokens: Tokens run through the model, recomputed ones again; tokens sampled.
        num_preemptions: Times a sequence lost its blocks.
        num_finished, num_aborted, num_failed: Completions by finish reason: 'stop' or 'length', 'abort', 'error'.
        num_draft_tokens, num_accepted_tokens: Drafts that the model verified, and drafts that it accepted.
        kv_cache_usage_peak: Share of the blocks in use after the step that had most of them.
    """

    cache: CacheStats
    num_steps: int = 0
    busy_s: float = 0.0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    kv_cache_usage_peak: float = 0.0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that a sequence holds now; vLLM's kv_cache_usage_perc."""
        return self.cache.num_in_use / self.cache.num_blocks


class StepRecord(NamedTuple):
    """A step that has run, and its times. `chunks` and `preempted` (see `StepTrace`) are read before sequences end."""

    plan: StepPlan
    chunks: tuple[tuple[str, int, int, int], ...]
    preempted: tuple[tuple[str, int], ...]
    start_s: float
    scheduled_s: float
    ran_s: float


def record_step(
    plan: StepPlan,
    sequences: Mapping[int, Sequence],
    requests: Mapping[str, RequestState],
    times: tuple[float, float, float],
) -> StepRecord:
    """The record of a step that has run; first admissions and preemptions go into the metrics of their requests."""
    for chunk in plan.prefills:
        sequence = sequences[chunk.seq_id]
        metrics = requests[sequence.request.request_id].metrics
        if metrics.first_scheduled_s is None:
            metrics.first_scheduled_s, metrics.num_cached_tokens = times[1], sequence.num_cached_tokens
    victims = [sequences[seq_id] for seq_id in plan.preempted]
    for victim in victims:
        requests[victim.request.request_id].metrics.num_preemptions += 1
    pairs = ((chunk, sequences[chunk.seq_id]) for chunk in plan.chunks)
    chunks = tuple((each.request.request_id, each.index, c.start, len(c.token_ids)) for c, each in pairs)
    return StepRecord(plan, chunks, tuple((each.request.request_id, each.index) for each in victims), *times)


@final
class StatLogger:
    """Keeps the newest steps' traces and the counts. Only the engine writes it, once per step or completion."""

    def __init__(self, max_steps: int | None, scheduler: Scheduler) -> None:
        self.steps: deque[StepTrace] = deque(maxlen=max_steps)
        self.counts = EngineStats(scheduler.cache.stats())
        self._scheduler = scheduler

    def note_end(self, reason: FinishReason) -> None:
        if reason == "abort":
            self.counts.num_aborted += 1
        elif reason == "error":
            self.counts.num_failed += 1
        else:
            self.counts.num_finished += 1

    def note_step(
        self,
        record: StepRecord,
        results: Mapping[int, Sized | Exception],
        finished: tuple[tuple[str, int], ...],
        end_s: float,
    ) -> None:
        """A step is over. `results` has the tokens of each chunk, or its error, by seq_id."""
        plan, counts, scheduler = record.plan, self.counts, self._scheduler
        runs = [(chunk.num_drafts, results[chunk.seq_id]) for chunk in plan.decodes[plan.num_decodes :]]
        verified = [(num_drafts, len(run) - 1) for num_drafts, run in runs if not isinstance(run, Exception)]
        before, counts.cache = counts.cache, scheduler.cache.stats()
        step = StepTrace(
            step=counts.num_steps,
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
            blocks_in_use=counts.cache.num_in_use,
            blocks_cached=counts.cache.num_cached,
            blocks_free=counts.cache.num_free,
            blocks_offloaded=plan.num_offloaded,
            blocks_loaded=len(plan.loaded),
            slots_in_use=counts.cache.num_slots_in_use,
            num_verifying=plan.num_verifying,
            num_draft_tokens=sum(num_drafts for num_drafts, _ in verified),
            num_accepted_tokens=sum(num_accepted for _, num_accepted in verified),
            prefix_cache_queries=counts.cache.num_queried_tokens - before.num_queried_tokens,
            prefix_cache_hits=counts.cache.num_hit_tokens - before.num_hit_tokens,
            queue_age_s=self._queue_age_s(end_s) if scheduler.num_waiting else None,
        )
        self.steps.append(step)
        counts.num_steps += 1
        counts.busy_s += end_s - record.start_s
        counts.num_computed_tokens += plan.num_tokens
        counts.num_preemptions += len(record.preempted)
        counts.num_draft_tokens += step.num_draft_tokens
        counts.num_accepted_tokens += step.num_accepted_tokens
        counts.kv_cache_usage_peak = max(counts.kv_cache_usage_peak, counts.kv_cache_usage)

    def _queue_age_s(self, now_s: float) -> float | None:
        sequences = self._scheduler.sequences.values()
        arrivals_s = [each.request.arrival_s for each in sequences if each.status is SequenceStatus.WAITING]
        return max(0.0, float(now_s - min(arrivals_s))) if arrivals_s else None

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        cache, num_waiting, num_running = scheduler.cache.stats(), scheduler.num_waiting, scheduler.num_running
        return replace(self.counts, cache=cache, num_waiting=num_waiting, num_running=num_running)
