"""What a step has to compute, in the few numbers that its time depends on."""

from typing import NamedTuple

from twophase.core.plan import StepPlan


class StepLoad(NamedTuple):
    """The composition of a step; of an average one, in fractions.

    Worked example: one decode at position 9 and a chunk of 4 tokens from position 2 on, the last of its prompt:
    5 tokens, 2 samples, 2 chunks; decode context 10; prefill pairs 3 + 4 + 5 + 6 = 18, prefill context 6.

    Attributes:
        num_tokens: Tokens that go through the layers.
        num_samples: Rows that go through the output projection.
        num_chunks: Sequences in the batch.
        decode_context: Keys that the decodes read, all together, their own included.
        prefill_pairs: Query-key pairs of the prefill chunks: quadratic in a prompt computed at once.
        prefill_context: Keys that the prefill chunks read, each chunk reading its own once.
        num_moved_blocks: Blocks moved from and to host memory.
    """

    num_tokens: int | float
    num_samples: int | float
    num_chunks: int | float
    decode_context: int | float
    prefill_pairs: int | float
    prefill_context: int | float
    num_moved_blocks: int | float = 0


def load_of(plan: StepPlan) -> StepLoad:
    """The load of a planned step."""
    decodes = plan.chunks[: plan.num_decodes]
    prefills = [(chunk.start, len(chunk.token_ids), chunk.num_samples > 0) for chunk in plan.chunks[plan.num_decodes :]]
    return StepLoad(
        num_tokens=plan.num_decodes + sum([count for _, count, _ in prefills]),
        num_samples=plan.num_decodes + sum([samples for *_, samples in prefills]),
        num_chunks=len(plan.chunks),
        decode_context=plan.num_decodes + sum([chunk.start for chunk in decodes]),
        prefill_pairs=sum([num_pairs(start, count) for start, count, _ in prefills]),
        prefill_context=sum([start + count for start, count, _ in prefills]),
        num_moved_blocks=plan.num_offloaded + len(plan.loaded),
    )


def num_pairs(start: int, num_tokens: int) -> int:
    """Query-key pairs of a chunk: its token at position p attends to p + 1 keys."""
    return start * num_tokens + num_tokens * (num_tokens + 1) // 2
