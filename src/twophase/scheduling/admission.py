"""How much of the pool an admission leaves to the sequences that run, by one of three rules."""

import math
from collections.abc import Callable
from typing import final

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.sequence import Sequence


@final
class OutputLengths:
    """How many tokens a completion is expected to have: an exponential moving average over ended completions.

    After a completion of `x` tokens, `mean` becomes DECAY * mean + (1 - DECAY) * x: the last ten have two thirds of the
    weight. It starts from the most tokens that the first completion to end was allowed: short completions, which end
    first, do not make an engine careless at once.

    Attributes:
        mean: Tokens; None before the first end.
    """

    DECAY = 0.9

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, num_tokens: int, max_tokens: int) -> None:
        """A completion ended by itself after `num_tokens` of the `max_tokens` that it was allowed."""
        before = max_tokens if self.mean is None else self.mean
        self.mean = self.DECAY * before + (1 - self.DECAY) * num_tokens

    def expected(self, max_tokens: int) -> int:
        """Tokens of a completion that is allowed `max_tokens`."""
        return max_tokens if self.mean is None else min(max_tokens, math.ceil(self.mean))


# Free blocks that an admission leaves to a sequence, beyond the blocks that the sequence has or reserves; given the
# sequence and its table. Completions that have not forked yet count all.
Growth = Callable[[Sequence, KVTable], int]


def growth_rule(config: SchedulerConfig, cache: KVAllocator, lengths: OutputLengths) -> Growth:
    """The rule that `config.admission` names; 'estimate' goes by `lengths`.

    For 'reserve' the sum over all sequences never exceeds the free blocks, and each block that a sequence takes lowers
    both. So every decode finds its block, and nothing is ever preempted for want of a block.
    """

    def worst_case(sequence: Sequence, table: KVTable) -> int:
        return num_blocks_up_to(cache, sequence, table, sequence.max_num_tokens - 1)

    def one_block_each(sequence: Sequence, table: KVTable) -> int:
        num_tokens = len(sequence.token_ids)
        num_slots = -(-num_tokens // cache.block_size) * cache.block_size
        may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
        if not may_grow and sequence.is_decoding:  # a decode that is not planned yet: into a new block, or a copy
            may_grow = cache.num_blocks_needed(table, num_tokens) > 0
        return sequence.num_completions * cache.num_blocks_at_most(1) if may_grow and config.reserve_growth else 0

    def expected(sequence: Sequence, table: KVTable) -> int:
        # A sequence that outlived the estimate is expected to go on: it is left what 'optimistic' leaves it.
        num_output = lengths.expected(sequence.max_num_tokens - sequence.num_prompt_tokens)
        num_tokens = sequence.num_prompt_tokens + num_output - 1
        return max(one_block_each(sequence, table), num_blocks_up_to(cache, sequence, table, num_tokens))

    return {"optimistic": one_block_each, "reserve": worst_case, "estimate": expected}[config.admission]


def num_blocks_up_to(cache: KVAllocator, sequence: Sequence, table: KVTable, num_tokens: int) -> int:
    """Blocks that the completions of a sequence take at most, beyond the blocks of its present tokens, until each has
    `num_tokens`.

    Worked example, block size 4: a prompt of 6 that has its 2 blocks, up to 10 tokens, 2 completions. Each copies the
    second block, or keeps it, and adds one: 2 * 2 = 4. (One too many: the last owner of a block need not copy it.)
    """
    num_now = len(sequence.token_ids)
    if sequence.num_completions > 1:
        num_beyond = num_tokens - num_now // cache.block_size * cache.block_size  # the full blocks stay shared
        return sequence.num_completions * cache.num_blocks_at_most(num_beyond) if num_tokens > num_now else 0
    num_now = max(num_now, table.num_tokens)
    num_needed = cache.num_blocks_needed(table, max(num_tokens, num_now))
    return num_needed if sequence.is_decoding else num_needed - cache.num_blocks_needed(table, num_now)
