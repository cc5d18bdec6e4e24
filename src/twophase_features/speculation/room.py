"""Room for drafts in a step: tokens of its budget, and slots behind each decode."""

from collections.abc import Mapping
from dataclasses import replace

from twophase.core.plan import StepPlan
from twophase.scheduling.scheduler import Scheduler


def with_room(plan: StepPlan, scheduler: Scheduler, max_drafts: int) -> StepPlan:
    """The latest plan, with the number of drafts for which a decode has room, at most `max_drafts`, in `num_drafts`.

    Drafts take only tokens of the budget and unreserved free blocks that the policy has left over, so they delay no
    sequence. The planner takes back the room of a step that is dropped, and of drafts that are not proposed.
    """
    if not max_drafts:
        return plan
    cache, chunks, budget = scheduler.cache, [], scheduler.planner.budget
    num_offloaded = cache.num_offloaded
    for chunk in plan.decodes:
        sequence = scheduler.sequences[chunk.seq_id]
        table, num_tokens = sequence.open_table, len(sequence.token_ids)
        # If all drafts are accepted, one more token is drawn, and must not exceed the sequence's limit.
        num_drafts = min(max_drafts, budget, sequence.max_num_tokens - num_tokens - 1)
        if num_drafts:
            end = cache.room(table, num_tokens + num_drafts, cache.num_free_blocks)
            cache.grow(table, end)  # no copy: a planned decode's last block is not shared
            num_drafts = end - num_tokens
            budget -= num_drafts
        chunks.append(chunk._replace(num_drafts=num_drafts))
    num_offloaded = plan.num_offloaded + cache.num_offloaded - num_offloaded
    return replace(plan, chunks=(*chunks, *plan.prefills), num_offloaded=num_offloaded)


def with_drafts(plan: StepPlan, scheduler: Scheduler, drafts: Mapping[int, list[int]]) -> StepPlan:
    """Put drafts, by seq_id, into the room that the plan has for them; the result is the scheduler's latest plan.

    A decode without drafts stays a decode.
    """
    decodes = []
    for chunk in plan.decodes:
        tokens = drafts.get(chunk.seq_id, [])
        decodes.append(chunk._replace(token_ids=[*chunk.token_ids, *tokens], num_drafts=len(tokens)))
    decodes.sort(key=lambda chunk: chunk.num_drafts > 0)  # stable; plain decodes first
    num_verifying = sum(chunk.num_drafts > 0 for chunk in decodes)
    drafted = replace(
        plan,
        chunks=(*decodes, *plan.prefills),
        num_decodes=len(decodes) - num_verifying,
        num_verifying=num_verifying,
        num_tokens=plan.num_tokens + sum(map(len, drafts.values())),
    )
    scheduler.amend(drafted)
    return drafted
