"""Many decode steps at once: the state that k rounds of `schedule` and `update` would leave, without the rounds.

Between two events (an arrival, a completion, a pool that runs out of blocks) a batch of decodes repeats the same plan.
A simulation need not plan it again and again. Only the Scheduler's own state is advanced here; nothing is computed, so
an engine has no use for this.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import islice
from operator import attrgetter

from twophase.cache.allocator import KVAllocator
from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.plan import StepPlan
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase.scheduling.scheduler import Scheduler
from twophase.scheduling.sequence import Sequence
from twophase_features.policies.ageing import AgeingPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy

# Policies that decode, in rank order, all that runs when none could be let in, and again until an event. A policy of
# another class might look at the clock or at a counter of its own: its steps are taken one by one.
REPEATING_POLICIES: tuple[type[Policy], ...] = (
    ChunkedPrefillPolicy,
    ContinuousPolicy,
    DeadlinePolicy,
    DynamicPolicy,
    PrefillFirstPolicy,
    PriorityPolicy,
    AgeingPolicy,
    StaticPolicy,
)

_ORDER = attrgetter("rank", "seq_id")
_Move = int
_GROW, _PUBLISH, _END = range(3)


def repeated_sequences(scheduler: Scheduler, plan: StepPlan, is_undisturbed: bool) -> list[Sequence]:
    """The sequences that the next steps decode, in batch order, if they repeat `plan`; empty if they may not.

    Args:
        plan: The latest one, confirmed by `update`.
        is_undisturbed: Nothing was added, finished or aborted since the plan was made. It matters when a sequence
            waits: what kept it out does so still.
    """
    if type(scheduler.cache) is not CacheManager or scheduler.cache.tier is not None:
        return []  # blocks come and go at every step, or move to a tier, which takes time: nothing repeats
    if not isinstance(scheduler.policy, REPEATING_POLICIES) or not all(chunk.num_samples for chunk in plan.chunks):
        return []
    is_all_decodes = plan.num_decodes == len(plan.chunks) and not plan.preempted
    # (A block that was copied is one that nobody need be left any more to copy: there may be more room than before.)
    is_refused_again = is_undisturbed and is_all_decodes and not plan.copies and _refuses_again(scheduler)
    if scheduler.num_waiting and not is_refused_again:
        return []
    alive = scheduler.sequences
    sequences = [alive[chunk.seq_id] for chunk in plan.chunks if chunk.seq_id in alive]
    if len(sequences) < scheduler.num_running:
        return []  # among them those that have just forked: their first step copies a block
    if not is_all_decodes:
        sequences.sort(key=_ORDER)  # those that have just done their prompt take their places
    return sequences


def _refuses_again(scheduler: Scheduler) -> bool:
    """Whether what a step of decodes refused is refused in the next one too, as long as no sequence ends.

    There is no more room then: tokens and places are taken by as many, and blocks by more, for what is decoded here is
    in no prompt. Only the policy may look at more than that. One that lets decodes stand still for prompts may have
    decoded because they had stood for long enough; but places it does not have either.
    """
    policy = scheduler.policy
    is_same_rule = not isinstance(policy, PrefillFirstPolicy) or policy.max_stalled_steps is None
    num_free_seqs = scheduler.planner.num_free_seqs
    return is_same_rule or any(first.num_completions > num_free_seqs for first in islice(scheduler.planner.waiting, 1))


def num_repeats(cache: KVAllocator, sequences: Seq[Sequence]) -> int:
    """Steps that decode exactly these sequences and find every block they need; in the last one some may end."""
    num_steps = min([sequence.max_num_tokens - len(sequence.token_ids) for sequence in sequences])
    num_free = cache.num_free_blocks
    block_size = cache.block_size
    if len(sequences) * -(-num_steps // block_size) <= num_free:
        return num_steps

    def num_new_blocks(steps: int) -> int:
        """Blocks that hold one more token per sequence and step, beyond those that they have."""
        return sum(
            -(-(len(sequence.token_ids) - 1 + steps) // block_size) - -(-(len(sequence.token_ids) - 1) // block_size)
            for sequence in sequences
        )

    enough, too_many = 0, num_steps + 1
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if num_new_blocks(middle) <= num_free:
            enough = middle
        else:
            too_many = middle
    return enough


def repeat_decodes(
    scheduler: Scheduler,
    sequences: Seq[Sequence],
    num_steps: int,
    token_of: Callable[[Sequence], int],
    after_step: Callable[[int], None] | None = None,
) -> list[Sequence]:
    """Advance the sequences by `num_steps` tokens each; returns those that have ended, all of them in the last step.

    Everything that touches the pool happens in the order of the single steps: in each, the sequences take their blocks
    in batch order; when it has run, they publish their full blocks and end in batch order. Steps in which none
    crosses a block's boundary touch nothing, so the time is a call per sequence and a call or two per block.

    Args:
        sequences: Of `repeated_sequences`.
        num_steps: At most `num_repeats`.
        token_of: The token that a sequence samples in each of the steps; no stop token.
        after_step: Called with 0 .. num_steps-1 when the scheduler's counts and blocks are as after that step.
    """
    planner, cache, block_size = scheduler.planner, scheduler.cache, scheduler.cache.block_size
    moves: list[tuple[int, int, _Move]] = []  # (twice the step, plus one when it has run; which sequence; what)
    lengths = [len(sequence.token_ids) for sequence in sequences]
    ended: list[Sequence] = []
    for i, (sequence, num_tokens) in enumerate(zip(sequences, lengths, strict=True)):
        assert isinstance(sequence.table, BlockTable)
        sequence.token_ids += [token_of(sequence)] * num_steps
        # Step j computes the token at position num_tokens - 1 + j; a block begins where that is a multiple of its size.
        moves += [(2 * step, i, _GROW) for step in range((1 - num_tokens) % block_size, num_steps, block_size)]
        if sequence.table.publish_at < num_tokens + num_steps:
            first_full = sequence.table.publish_at - num_tokens
            moves += [(2 * step + 1, i, _PUBLISH) for step in range(first_full, num_steps, block_size)]
        if num_tokens + num_steps == sequence.max_num_tokens:
            moves.append((2 * num_steps - 1, i, _END))
            ended.append(sequence)
    moves.sort()
    num_done = 0
    for phase, i, move in moves:
        sequence, step = sequences[i], phase // 2
        assert sequence.table is not None
        while after_step is not None and num_done < step:
            after_step(num_done)
            num_done += 1
        cache.grow(sequence.table, lengths[i] + step)
        if move == _PUBLISH:
            planner.confirm(sequence, lengths[i] + step)
        elif move == _END:
            scheduler.finish(sequence.seq_id, "length")
    for sequence, num_tokens in zip(sequences, lengths, strict=True):
        if sequence.table is not None:
            cache.grow(sequence.table, num_tokens + num_steps - 1)
            sequence.num_computed_tokens = num_tokens + num_steps - 1
    while after_step is not None and num_done < num_steps:
        after_step(num_done)
        num_done += 1
    return ended
