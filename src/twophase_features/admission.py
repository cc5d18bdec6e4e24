"""Admission by the lengths of outputs: 'reserve' leaves each sequence its worst case, 'estimate' an average."""

import math
from typing import final

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.scheduling.limits import AdmissionRule, SchedulerConfig
from twophase.scheduling.sequence import Sequence


@final
class Reserve(AdmissionRule):
    """Leaves a sequence the blocks of its longest output, so that no sequence is preempted for want of a block.

    The sum over all sequences never exceeds the free blocks, and each block that a sequence takes lowers both.
    """

    def headroom(self, sequence: Sequence, table: KVTable) -> int:
        return num_blocks_up_to(self.cache, sequence, table, sequence.max_num_tokens - 1)


@final
class Estimate(AdmissionRule):
    """Leaves a sequence the blocks of an output of the average length so far, and at least what 'optimistic' does.

    The average is an exponential moving one: after an output of `x` tokens, `mean_length` becomes
    DECAY * mean_length + (1 - DECAY) * x, so the last ten have two thirds of the weight. It starts from the most tokens
    that the first completion to end was allowed: short completions, which end first, do not make an engine careless at
    once.

    Attributes:
        mean_length: Tokens of an output; None before the first end.
    """

    DECAY = 0.9

    def __init__(self, config: SchedulerConfig, cache: KVAllocator) -> None:
        super().__init__(config, cache)
        self.mean_length: float | None = None

    def headroom(self, sequence: Sequence, table: KVTable) -> int:
        num_output = self.expected(sequence.max_num_tokens - sequence.num_prompt_tokens)
        num_tokens = sequence.num_prompt_tokens + num_output - 1
        return max(super().headroom(sequence, table), num_blocks_up_to(self.cache, sequence, table, num_tokens))

    def expected(self, max_tokens: int) -> int:
        """Tokens of an output that is allowed `max_tokens`."""
        return max_tokens if self.mean_length is None else min(max_tokens, math.ceil(self.mean_length))

    def note_end(self, sequence: Sequence) -> None:
        num_prompt, num_tokens = sequence.num_prompt_tokens, len(sequence.token_ids)
        before = sequence.max_num_tokens - num_prompt if self.mean_length is None else self.mean_length
        self.mean_length = self.DECAY * before + (1 - self.DECAY) * (num_tokens - num_prompt)


def by_lengths(config: SchedulerConfig, cache: KVAllocator) -> AdmissionRule:
    """The admission rule that `config.admission` names."""
    return {"reserve": Reserve, "estimate": Estimate}[config.admission](config, cache)


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
