"""What the engine's trace says about a whole run: work, blocks, preemptions, and tokens computed twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twophase.core.plan import StepTrace


def end_of(step: StepTrace) -> float | int:
    """When a step was over: the moment that its counts ('after the step') are about."""
    return step.start_s + step.schedule_s + step.run_s + step.update_s


def run_span(step: StepTrace) -> tuple[float | int, float | int]:
    """[start, end) of a step's run: the time in which its chunks are computed."""
    start_s = step.start_s + step.schedule_s
    return start_s, start_s + step.run_s


def num_blocks(step: StepTrace) -> int:
    """Blocks in the pool."""
    return step.blocks_in_use + step.blocks_cached + step.blocks_free


def fragmentation(step: StepTrace, block_size: int) -> float | None:
    """Share of the slots of blocks in use that no token was given; None when none is in use or nobody counted."""
    if step.slots_in_use is None or step.blocks_in_use == 0:
        return None
    return 1 - step.slots_in_use / (step.blocks_in_use * block_size)


def num_tokens(step: StepTrace) -> int:
    return sum(count for _, _, _, count in step.chunks)


def num_recomputed_tokens(steps: Iterable[StepTrace]) -> int:
    """Tokens that were computed again after a preemption: positions a completion's chunks had covered before."""
    reached: dict[tuple[str, int], int] = {}
    num_again = 0
    for step in steps:
        for position, (request_id, index, start, count) in enumerate(step.chunks):
            before = reached.get((request_id, index), 0)
            num_again += max(0, min(before, start + count) - start)
            # A draft that was wrong makes way for the right token; that is no loss.
            has_drafts = 0 <= position - step.num_decodes < step.num_verifying
            reached[request_id, index] = max(before, start + (1 if has_drafts else count))
    return num_again


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Totals and means over a run's steps. Means of states are over time: a state holds until the next step ends.

    Attributes:
        busy_s: Time inside steps; `overhead_s` of it was spent on scheduling and bookkeeping.
        num_decode_tokens, num_prefill_tokens: Tokens computed, by what they were for; together all of them.
        num_recomputed_tokens: Of these, how many had been computed before and were lost to a preemption.
        num_blocks_offloaded, num_blocks_loaded: To and from host memory, where preemption swaps.
        waiting_mean, waiting_max: Sequences that wait inside the engine, preempted ones included (see also `queue`).
        num_blocks: In the pool.
        blocks_in_use_mean, blocks_in_use_max: Blocks that a sequence holds.
        kv_cache_usage_mean, kv_cache_usage_max: The same as shares of the pool.
        fragmentation_mean: Share of their slots that no token was given, while any block was in use; None: not known.
    """

    num_steps: int
    busy_s: float
    overhead_s: float
    num_decode_tokens: int
    num_prefill_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    num_blocks_offloaded: int
    num_blocks_loaded: int
    waiting_mean: float
    waiting_max: int
    num_blocks: int
    blocks_in_use_mean: float
    blocks_in_use_max: int
    kv_cache_usage_mean: float
    kv_cache_usage_max: float
    fragmentation_mean: float | None

    @classmethod
    def of(cls, steps: Sequence[StepTrace], block_size: int | None = None) -> "StepSummary | None":
        """None without steps; `block_size` tells the fragmentation."""
        if not steps:
            return None
        overhead_s = sum(step.schedule_s + step.update_s for step in steps)
        num_decodes = sum(step.num_decode_tokens for step in steps)
        weights_s = held_s(steps)
        wasted = [
            (share, weight)
            for step, weight in zip(steps, weights_s, strict=True)
            if block_size is not None and (share := fragmentation(step, block_size)) is not None
        ]
        return cls(
            num_steps=len(steps),
            busy_s=float(overhead_s + sum(step.run_s for step in steps)),
            overhead_s=float(overhead_s),
            num_decode_tokens=num_decodes,
            num_prefill_tokens=sum(map(num_tokens, steps)) - num_decodes,
            num_recomputed_tokens=num_recomputed_tokens(steps),
            num_preemptions=sum(len(step.preempted) for step in steps),
            num_blocks_offloaded=sum(step.blocks_offloaded for step in steps),
            num_blocks_loaded=sum(step.blocks_loaded for step in steps),
            waiting_mean=mean_over_time([step.num_waiting for step in steps], weights_s),
            waiting_max=max(step.num_waiting for step in steps),
            num_blocks=num_blocks(steps[-1]),
            blocks_in_use_mean=mean_over_time([step.blocks_in_use for step in steps], weights_s),
            blocks_in_use_max=max(step.blocks_in_use for step in steps),
            kv_cache_usage_mean=mean_over_time([step.kv_cache_usage for step in steps], weights_s),
            kv_cache_usage_max=max(step.kv_cache_usage for step in steps),
            fragmentation_mean=mean_over_time(*zip(*wasted, strict=True)) if wasted else None,
        )


def held_s(steps: Sequence[StepTrace]) -> list[float | int]:
    """How long the state after each step held: until the next one ended. That of the last step held for no time."""
    ends = [end_of(step) for step in steps]
    return [later - earlier for earlier, later in pairwise([*ends, *ends[-1:]])]


def mean_over_time(states: Sequence[float | int], weights_s: Sequence[float | int]) -> float:
    """Mean of at least one state by how long each held; their plain mean if no time passed (a single step)."""
    total_s = sum(weights_s)
    if total_s > 0:
        return sum(state * weight for state, weight in zip(states, weights_s, strict=True)) / total_s
    return sum(states) / len(states)
