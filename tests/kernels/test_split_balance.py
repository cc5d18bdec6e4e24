"""What ragged batches cost, counted: one program per sequence and KV head against splits by length."""

import random

import pytest

from tests.kernels.split_balance import chunk_shares, even_shares, tail
from twophase_kernels.paged_decode import choose_num_splits, is_split_by_length, max_rows

# An H200's multiprocessors, with two programs of decode on each, and the heads of Llama 3 8B.
SMS, SLOTS, KV_HEADS, BLOCK_N = 132, 2 * 132, 8, 64


def before_and_after(seq_lens):
    assert choose_num_splits(len(seq_lens), KV_HEADS, max(seq_lens), SMS) == 1, "it fills the GPU"
    assert is_split_by_length(len(seq_lens), max(seq_lens))
    shares, chunks = even_shares(seq_lens, 1, BLOCK_N), chunk_shares(seq_lens, BLOCK_N)
    return tail(shares, KV_HEADS, SLOTS), tail(chunks, KV_HEADS, SLOTS)


def test_even_shares():
    """130 keys are 3 tiles of 64: in 2 parts 2 and 1; in 4 parts 1, 1, 1 and none."""
    assert even_shares([130, 0], 1, 64) == [3, 0]
    assert even_shares([130, 64], 2, 64) == [2, 1, 1, 0]
    assert even_shares([130], 4, 64) == [1, 1, 1, 0]


def test_chunk_shares():
    """1,600 + 128 + 128 keys: a mean of 619 keys, chunks of 10 tiles; 6 items, one of them idle."""
    assert chunk_shares([1600, 128, 128], 64) == [10, 10, 5, 2, 2, 0]
    assert chunk_shares([600, 0], 64) == [8, 2, 0, 0], (
        "no chunk is shorter than 512 keys, and an empty sequence has one"
    )


def test_every_chunk_has_an_item():
    """The grid is a bound for any lengths, and no tile is lost."""
    rng = random.Random(0)
    for _ in range(500):
        seq_lens = [int(10 ** rng.uniform(0, 5)) - 1 for _ in range(rng.randint(1, 70))]
        block_n = rng.choice([32, 64, 128])
        shares = chunk_shares(seq_lens, block_n)
        assert len(shares) == 2 * len(seq_lens)
        assert sum(shares) == sum(even_shares(seq_lens, 1, block_n))


def test_tail():
    """Programs of 4, 1, 1 tiles twice, on two slots: 4 | 1 1, then 4 after the second of these, and so on."""
    got = tail([4, 1, 1], num_kv_heads=2, num_slots=2)
    assert (got.longest, got.end, got.ideal) == (4, 6, 6.0)
    assert tail([4, 1], 1, 2) == (4, 4, 2.5)
    assert tail([4, 1], 1, 2).waste == pytest.approx(0.375)
    assert tail([], 1, 2).waste == 0


def test_uniform_batches_are_as_before():
    for num_seqs in (33, 64, 256):
        before, after = before_and_after([8192] * num_seqs)
        assert after == before


@pytest.mark.parametrize(
    ("seq_lens", "least_gain"),
    [([32768] + [1024] * 63, 9), ([1024] * 63 + [32768], 9), ([131072, 16384] + [2048] * 126, 10)],
    ids=["1 long of 64", "the last of 64 long", "2 long of 128"],
)
def test_one_long_sequence_among_short_ones(seq_lens, least_gain):
    before, after = before_and_after(seq_lens)
    assert before.end >= least_gain * after.end, (before, after)
    assert after.waste < 0.4 < 0.8 < before.waste


def test_verifying_drafts_of_one_long_sequence():
    """5 tokens of 4 heads at 32K: a program per KV head in `paged_prefill`, now as many as for one token."""
    num_splits = choose_num_splits(1, KV_HEADS, 32768, SMS)
    before, after = (tail(even_shares([32768], n, BLOCK_N), KV_HEADS, SLOTS) for n in (1, num_splits))
    assert max_rows(128) >= 5 * 4
    assert (before.longest, before.end) == (512, 512)
    assert (after.longest, after.end) == (16, 16), "256 programs on 264 slots"
