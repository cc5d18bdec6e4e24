"""Drafts in a step's plan: what room they get, and the plan with them in it.

Speculative decoding guesses a sequence's next tokens cheaply and verifies all guesses in one step of the model
(Leviathan, Kalman, Matias, arXiv:2211.17192; Chen et al., arXiv:2302.01318). Drafts get what the policy has left over:
budget that no decode, prefill or newcomer wanted, and blocks that are free and promised to no prefill. So they cost
nobody its turn, whatever the policy.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from twophase.cache.manager import CacheManager
from twophase.core.plan import ScheduledChunk, StepPlan
from twophase.scheduling.roster import blamed_on
from twophase.scheduling.sequence import Sequence
from twophase.scheduling.step import StepBuilder


def reserve_drafts(
    plan: StepPlan, sequences: Mapping[int, Sequence], cache: CacheManager, step: StepBuilder, max_drafts: int
) -> StepPlan:
    """The plan with slots for up to `max_drafts` drafts behind each decode, told by `num_drafts` of its chunk.

    Args:
        step: What the plan was made with: knows what it left over.

    Raises:
        SequenceFault: Something unforeseen happened to one sequence.
    """
    decodes, budget = [], step.budget
    for chunk in plan.chunks[: plan.num_decodes]:
        sequence = sequences[chunk.seq_id]
        with blamed_on(sequence):
            num_drafts = _reserve(sequence, cache, step.num_spare_blocks, min(max_drafts, budget))
        budget -= num_drafts
        decodes.append(chunk._replace(num_drafts=num_drafts))
    return replace(plan, chunks=(*decodes, *plan.chunks[plan.num_decodes :]))


def _reserve(sequence: Sequence, cache: CacheManager, num_spare_blocks: int, max_drafts: int) -> int:
    """Slots for drafts behind a sequence's newest token; returns their number."""
    assert sequence.table is not None
    num_tokens = len(sequence.token_ids)
    # All accepted, a token is drawn after the last of them too; and that one must not be one too many.
    num_drafts = max(0, min(max_drafts, sequence.max_num_tokens - num_tokens - 1))
    while num_drafts and cache.num_blocks_needed(sequence.table, num_tokens + num_drafts) > num_spare_blocks:
        num_drafts -= 1
    if num_drafts:
        copies = cache.grow(sequence.table, num_tokens + num_drafts)
        assert not copies, "the decode planned before has a last block of its own"
    return num_drafts


def put_drafts(plan: StepPlan, drafts: Mapping[int, Seq[int]]) -> StepPlan:
    """The plan with these drafts, by seq_id, in the room reserved for them. A decode without drafts stays a decode.

    Raises:
        ValueError: More drafts than there is room for, or drafts of a chunk that has no room for any.
    """
    decodes: list[ScheduledChunk] = []
    verifying: list[ScheduledChunk] = []
    rooms = {chunk.seq_id: chunk.num_drafts for chunk in plan.chunks}
    for seq_id, tokens in drafts.items():
        if len(tokens) > rooms.get(seq_id, 0):
            raise ValueError(f"sequence {seq_id} has room for {rooms.get(seq_id, 0)} drafts, got {len(tokens)}.")
    for chunk in plan.chunks[: plan.num_decodes]:
        tokens = drafts.get(chunk.seq_id, ())
        token_ids = [*chunk.token_ids, *tokens]
        (verifying if tokens else decodes).append(chunk._replace(token_ids=token_ids, num_drafts=len(tokens)))
    return replace(
        plan,
        chunks=(*decodes, *verifying, *plan.chunks[plan.num_decodes :]),
        num_decodes=len(decodes),
        num_verifying=len(verifying),
        num_tokens=plan.num_tokens + sum(map(len, drafts.values())),
    )
