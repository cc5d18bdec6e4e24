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


def num_tokens(step: StepTrace) -> int:
    return sum(count for _, _, _, count in step.chunks)


def num_decode_tokens(step: StepTrace) -> int:
    """Tokens computed for sequences that decode, drafts included."""
    return step.num_decodes + step.num_verifying + step.num_draft_tokens


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
    """Totals over a run's steps.

    Attributes:
        busy_s: Time inside steps; `overhead_s` of it was spent on scheduling and bookkeeping.
        num_decode_tokens, num_prefill_tokens: Tokens computed, by what they were for; together all of them.
        num_recomputed_tokens: Of these, how many had been computed before and were lost to a preemption.
        num_blocks_offloaded, num_blocks_loaded: To and from host memory, where preemption swaps.
        num_blocks: In the pool.
        blocks_in_use_mean, blocks_in_use_max: Blocks that a sequence holds. The mean is over time: a state holds until
            the next step ends.
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
    num_blocks: int
    blocks_in_use_mean: float
    blocks_in_use_max: int

    @classmethod
    def of(cls, steps: Sequence[StepTrace]) -> "StepSummary | None":
        """None without steps."""
        if not steps:
            return None
        overhead_s = sum(step.schedule_s + step.update_s for step in steps)
        num_decodes = sum(map(num_decode_tokens, steps))
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
            num_blocks=num_blocks(steps[-1]),
            blocks_in_use_mean=_mean_over_time(steps),
            blocks_in_use_max=max(step.blocks_in_use for step in steps),
        )


def _mean_over_time(steps: Sequence[StepTrace]) -> float:
    """Mean of the blocks in use by how long each state held; their plain mean if no time passed (a single step)."""
    ends_s = [end_of(step) for step in steps]
    held_s = [later - earlier for earlier, later in pairwise(ends_s)]
    if sum(held_s) > 0:
        return sum(step.blocks_in_use * time_s for step, time_s in zip(steps, held_s, strict=False)) / sum(held_s)
    return sum(step.blocks_in_use for step in steps) / len(steps)
