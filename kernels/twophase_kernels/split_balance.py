"""How evenly attention over ragged contexts is shared out: today's splits, and a work list that is designed, not built.

Attention over long contexts ends when its longest program does. Programs are started in order, `num_slots` run at once,
and one with t tiles of keys takes t turns: `shares` says what each gets, `tail` what comes of it.

**Today** (`even_shares`) `paged_decode` splits every sequence into the same number of parts. That number comes from
shapes: it is 1 once the batch fills the GPU twice over, so a sequence of 32K tokens among short ones is one program's
work. `paged_prefill` does not split keys at all, nor do the few tokens of a draft's verification.

**The work list** (`chunk_shares`) splits by length, and reads no length back from the device:

1. The grid is (num_sequences + spare, H_kv), from shapes alone, so that a CUDA graph can hold it. `spare` items are
   for splitting (`spare_items`): as many as make 4 programs per multiprocessor while the batch does not fill the GPU,
   like now; afterwards one per sequence.
2. The length of a chunk is computed on the device: c = the keys of all sequences / spare, rounded up to whole tiles and
   at least MIN_TOKENS_PER_SPLIT. A sequence of n keys has max(1, ceil(n / c)) chunks, which is at most 1 + n / c, so
   that together they are at most num_sequences + spare: each item of the grid has a chunk or, at the end of the list,
   nothing to do. In a batch that fills the GPU c is the mean: equal lengths are not split, and no program is longer.
3. A program reads the lengths twice, in blocks of a fixed size (no binary per batch size): for their sum, and for the
   running sum of chunk counts, in which it finds its (sequence, chunk). With a window the visible range is what counts;
   the first chunk takes the sinks.
4. A sequence with one chunk writes its result. The others write fp32 partials [item, H, D] and LSEs [item, H], and the
   first chunk's program the sequence's first item and count. `merge_splits` takes these instead of a row of splits, and
   its programs of unsplit sequences end at once.
5. Verification: the same list, with tokens times heads as rows, when `max_query_len` rows fit one tile; a chunk before
   the first query needs no mask.

The price: a merge's launch where a large batch has none now, two reads of the lengths per program, and results that
depend on the batch in their last bits, as they do now (`deterministic=True` keeps its chunks of fixed length).
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from twophase_kernels._triton import cdiv
from twophase_kernels.paged_decode import MIN_TOKENS_PER_SPLIT


def even_shares(seq_lens: Sequence[int], num_splits: int, block_n: int) -> list[int]:
    """Tiles of each program of one KV head, every sequence in `num_splits` parts, as `paged_decode` does it."""
    shares = []
    for seq_len in seq_lens:
        num_tiles = cdiv(seq_len, block_n)
        per_split = cdiv(num_tiles, num_splits)
        shares += [min(per_split, max(0, num_tiles - split * per_split)) for split in range(num_splits)]
    return shares


def spare_items(num_seqs: int, num_kv_heads: int, num_sms: int) -> int:
    """Items of the work list beyond one per sequence, from shapes alone."""
    if num_seqs * num_kv_heads >= 2 * num_sms:
        return num_seqs
    return cdiv(4 * num_sms, num_kv_heads)


def chunk_shares(seq_lens: Sequence[int], spare: int, block_n: int) -> list[int]:
    """Tiles of each program of one KV head with the work list; the grid has `len(seq_lens) + spare` of them."""
    chunk_tiles = cdiv(max(cdiv(sum(seq_lens), spare), MIN_TOKENS_PER_SPLIT), block_n)
    shares = []
    for seq_len in seq_lens:
        num_tiles = cdiv(seq_len, block_n)
        num_chunks = max(1, cdiv(num_tiles, chunk_tiles))
        shares += [min(chunk_tiles, num_tiles - chunk * chunk_tiles) for chunk in range(num_chunks)]
    return shares + [0] * (len(seq_lens) + spare - len(shares))


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
    """What comes of `shares`, for each of `num_kv_heads`, where `num_slots` programs run at once, started in order."""
    slots = [0] * num_slots
    for share in list(shares) * num_kv_heads:
        heapq.heapreplace(slots, slots[0] + share)
    return Tail(max(shares, default=0), max(slots), sum(shares) * num_kv_heads / num_slots)
