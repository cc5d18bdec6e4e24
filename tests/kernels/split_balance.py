"""How evenly decode's work over ragged contexts is shared out, counted from lengths alone.

Attention over long contexts ends when its longest program does. Programs are started in order, `num_slots` run at once,
and a program with t tiles of keys takes t units of time. `even_shares` and `chunk_shares` give each program's tiles for
the two ways in which `paged_decode` splits, `tail` the resulting times.

The few tokens of a draft's verification are split like single ones. Not split by length: small batches, whose sequences
all have the same number of parts; and the chunks of `paged_prefill`.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from twophase_kernels._triton import cdiv
from twophase_kernels.paged_decode import MIN_TOKENS_PER_CHUNK


def even_shares(seq_lens: Sequence[int], num_splits: int, block_n: int) -> list[int]:
    """Tiles of each program of one KV head, every sequence in `num_splits` parts."""
    shares = []
    for seq_len in seq_lens:
        num_tiles = cdiv(seq_len, block_n)
        per_split = cdiv(num_tiles, num_splits)
        shares += [min(per_split, max(0, num_tiles - split * per_split)) for split in range(num_splits)]
    return shares


def chunk_shares(seq_lens: Sequence[int], block_n: int) -> list[int]:
    """Tiles of each program of one KV head, split by length; the grid has two for each sequence."""
    chunk_tiles = cdiv(max(cdiv(sum(seq_lens), len(seq_lens)), MIN_TOKENS_PER_CHUNK), block_n)
    shares = []
    for seq_len in seq_lens:
        num_tiles = cdiv(seq_len, block_n)
        num_chunks = max(1, cdiv(num_tiles, chunk_tiles))
        shares += [min(chunk_tiles, num_tiles - chunk * chunk_tiles) for chunk in range(num_chunks)]
    return shares + [0] * (2 * len(seq_lens) - len(shares))


class Tail(NamedTuple):
    """In turns, one of which is a tile's time in one program."""

    longest: int  # the longest program
    end: int  # when the last program ends
    ideal: float  # when all would end, were the tiles shared out evenly over the slots

    @property
    def waste(self) -> float:
        """Share of the slots' time, up to the end, in which they have nothing to do."""
        return 1 - self.ideal / self.end if self.end else 0.0


def tail(shares: Sequence[int], num_kv_heads: int, num_slots: int) -> Tail:
    """The times for `shares`, repeated for each of `num_kv_heads`; `num_slots` programs run at once, started in
    order."""
    slots = [0] * num_slots
    for share in list(shares) * num_kv_heads:
        heapq.heapreplace(slots, slots[0] + share)
    return Tail(max(shares, default=0), max(slots), sum(shares) * num_kv_heads / num_slots)
