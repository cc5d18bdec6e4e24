"""What ragged batches cost, counted from lengths alone: one program per sequence and KV head against splits by length.

Attention over long contexts ends when its longest program does. Programs are started in order, a number of slots run at
once, and a program with t tiles of keys takes t units of time.
"""

import heapq

import pytest

from twophase_kernels._triton import cdiv
from twophase_kernels.paged_decode import MIN_TOKENS_PER_CHUNK, choose_num_splits, is_split_by_length, max_rows

# An H200's multiprocessors, with two programs of decode on each, and the heads of Llama 3 8B.
SMS, SLOTS, KV_HEADS, BLOCK_N = 132, 2 * 132, 8, 64


def even_shares(seq_lens, num_splits):
    """Tiles of each program of one KV head, every sequence in `num_splits` parts."""
    shares = []
    for num_tiles in (cdiv(seq_len, BLOCK_N) for seq_len in seq_lens):
        per_split = cdiv(num_tiles, num_splits)
        shares += [min(per_split, max(0, num_tiles - split * per_split)) for split in range(num_splits)]
    return shares


def chunk_shares(seq_lens):
    """The same, split by length."""
    chunk_tiles = cdiv(max(cdiv(sum(seq_lens), len(seq_lens)), MIN_TOKENS_PER_CHUNK), BLOCK_N)
    num_tiles = [cdiv(seq_len, BLOCK_N) for seq_len in seq_lens]
    return [min(chunk_tiles, n - first) for n in num_tiles for first in range(0, max(1, n), chunk_tiles)]


def end_of(shares):
    """(when the last program ends, the share of the slots' time until then in which they have nothing to do)."""
    slots = [0] * SLOTS
    for share in list(shares) * KV_HEADS:
        heapq.heapreplace(slots, slots[0] + share)
    return max(slots), 1 - sum(slots) / len(slots) / max(slots)


def before_and_after(seq_lens):
    assert choose_num_splits(len(seq_lens), KV_HEADS, max(seq_lens), SMS) == 1, "it fills the GPU"
    assert is_split_by_length(len(seq_lens), max(seq_lens))
    chunks = chunk_shares(seq_lens)
    assert len(chunks) <= 2 * len(seq_lens), "the grid is a bound"
    return end_of(even_shares(seq_lens, 1)), end_of(chunks)


@pytest.mark.parametrize("num_seqs", [33, 64, 256])
def test_uniform_batches_are_as_before(num_seqs):
    before, after = before_and_after([8192] * num_seqs)
    assert after == before


@pytest.mark.parametrize(
    ("seq_lens", "least_gain"),
    [([32768] + [1024] * 63, 9), ([1024] * 63 + [32768], 9), ([131072, 16384] + [2048] * 126, 10)],
    ids=["1 long of 64", "the last of 64 long", "2 long of 128"],
)
def test_one_long_sequence_among_short_ones(seq_lens, least_gain):
    (end_before, waste_before), (end_after, waste_after) = before_and_after(seq_lens)
    assert end_before >= least_gain * end_after
    assert waste_after < 0.4 < 0.8 < waste_before


def test_verifying_drafts_of_one_long_sequence():
    """5 tokens of 4 heads at 32K: as many programs as for one token, 256 on 264 slots."""
    assert max_rows(128) >= 5 * 4
    assert end_of(even_shares([32768], choose_num_splits(1, KV_HEADS, 32768, SMS)))[0] == 16
