"""What sequences with blocks may still take: how much of the pool an admission leaves them, by one of three rules."""

import math
from collections.abc import Callable
from typing import final

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.sequence import Sequence


@final
class OutputLengths:
    """How many tokens a completion is expected to have: an exponential moving average over those that have ended.

    After a completion of `x` tokens, `mean` becomes DECAY * mean + (1 - DECAY) * x: the last ten have two thirds of the
    weight. It starts from the worst case, with the most tokens that the first completion to end was allowed; until
    then, every completion is expected to be as long as it may get. So an engine begins as careful as 'reserve', and the
    completions that end first, which are the short ones, do not make it careless at once.

    Attributes:
        mean: Tokens; None before the first end.
    """

    DECAY = 0.9

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, num_tokens: int, max_tokens: int) -> None:
        """A completion ended by itself after so many of the tokens that it was allowed."""
        before = max_tokens if self.mean is None else self.mean
        self.mean = self.DECAY * before + (1 - self.DECAY) * num_tokens

    def expected(self, max_tokens: int) -> int:
        """Of a completion that is allowed so many."""
        return max_tokens if self.mean is None else min(max_tokens, math.ceil(self.mean))


# Free blocks that a newcomer leaves to a sequence beside those that it has, or takes or reserves when it is admitted.
# Given the sequence, and its table or one that was opened for it. Completions that have not parted yet count all.
Growth = Callable[[Sequence, KVTable], int]


def growth_rule(config: SchedulerConfig, cache: KVAllocator, lengths: OutputLengths) -> Growth:
    """As `config.admission` says; `lengths` is what 'estimate' goes by.

    For 'reserve' the sum over all sequences is never more than what is free, and it falls by one with each block that
    one of them takes. So every decode finds its block, and nothing is ever preempted for want of one.
    """

    def one_block_each(sequence: Sequence, table: KVTable) -> int:
        return num_growing(cache, sequence) * cache.num_blocks_at_most(1) if config.reserve_growth else 0

    def worst_case(sequence: Sequence, table: KVTable) -> int:
        return num_blocks_up_to(cache, sequence, table, sequence.max_num_tokens - 1)

    def expected(sequence: Sequence, table: KVTable) -> int:
        # One that outlived the estimate is expected to go on, so it is left what the optimistic would leave it.
        num_output = lengths.expected(sequence.max_num_tokens - sequence.num_prompt_tokens)
        num_tokens = sequence.num_prompt_tokens + num_output - 1
        return max(one_block_each(sequence, table), num_blocks_up_to(cache, sequence, table, num_tokens))

    return {"optimistic": one_block_each, "reserve": worst_case, "estimate": expected}[config.admission]


def num_growing(cache: KVAllocator, sequence: Sequence) -> int:
    """Completions of a sequence that may still need blocks beyond those that it has, or takes when it is admitted."""
    num_slots = -(-len(sequence.token_ids) // cache.block_size) * cache.block_size
    may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
    if not may_grow and sequence.table is not None and sequence.is_decoding:
        # It grows in this step, if its decode is not planned yet: into a new block, or a copy of a shared one.
        may_grow = cache.num_blocks_needed(sequence.table, len(sequence.token_ids)) > 0
    return sequence.num_completions if may_grow else 0


def num_blocks_up_to(cache: KVAllocator, sequence: Sequence, table: KVTable, num_tokens: int) -> int:
    """Blocks that its completions take at most, beyond those for the tokens that it has, until each has `num_tokens`.

    Worked example, block size 4: a prompt of 6 that has its 2 blocks, up to 10 tokens, 2 completions. Each copies the
    second block, or keeps it, and adds one: 2 * 2 = 4. (It is one block too many: the last of those that share a block
    need not copy it.)
    """
    num_now = len(sequence.token_ids)
    if sequence.num_completions > 1:
        num_beyond = num_tokens - num_now // cache.block_size * cache.block_size  # the full blocks stay shared
        return sequence.num_completions * cache.num_blocks_at_most(num_beyond) if num_tokens > num_now else 0
    num_now = max(num_now, table.num_tokens)
    num_needed = cache.num_blocks_needed(table, max(num_tokens, num_now))
    return num_needed if sequence.is_decoding else num_needed - cache.num_blocks_needed(table, num_now)
