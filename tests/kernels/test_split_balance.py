"""What ragged batches cost, counted: the splits that the kernels make now against the work list that is designed."""

import itertools
import random

import pytest

from twophase_kernels.paged_decode import choose_num_splits
from twophase_kernels.split_balance import chunk_shares, even_shares, spare_items, tail

# An H200's multiprocessors, with three programs of decode on each, and the heads of Llama 3 8B.
SMS, SLOTS, KV_HEADS, BLOCK_N = 132, 3 * 132, 8, 64


def before_and_after(seq_lens):
    num_splits = choose_num_splits(len(seq_lens), KV_HEADS, max(seq_lens), SMS)
    shares = even_shares(seq_lens, num_splits, BLOCK_N)
    chunks = chunk_shares(seq_lens, spare_items(len(seq_lens), KV_HEADS, SMS), BLOCK_N)
    return tail(shares, KV_HEADS, SLOTS), tail(chunks, KV_HEADS, SLOTS)


def test_even_shares():
    """130 keys are 3 tiles of 64: in 2 parts 2 and 1; in 4 parts 1, 1, 1 and none."""
    assert even_shares([130, 0], 1, 64) == [3, 0]
    assert even_shares([130, 64], 2, 64) == [2, 1, 1, 0]
    assert even_shares([130], 4, 64) == [1, 1, 1, 0]


def test_chunk_shares():
    """1,024 + 128 + 128 keys and 5 spare items: chunks of 256 keys, 4 tiles; 3 + 5 items, 2 of them idle."""
    assert chunk_shares([1024, 128, 128], 5, 64) == [4, 4, 4, 4, 2, 2, 0, 0]
    assert chunk_shares([100], 3, 64) == [2, 0, 0, 0], "no chunk is shorter than 128 keys"
    assert chunk_shares([0, 0], 1, 64) == [0, 0, 0]


def test_every_chunk_has_an_item():
    """The grid is a bound for any lengths, and no tile is lost."""
    rng = random.Random(0)
    for _ in range(500):
        seq_lens = [int(10 ** rng.uniform(0, 5)) - 1 for _ in range(rng.randint(1, 70))]
        spare, block_n = rng.randint(1, 80), rng.choice([32, 64, 128])
        shares = chunk_shares(seq_lens, spare, block_n)
        assert len(shares) == len(seq_lens) + spare
        assert sum(shares) == sum(even_shares(seq_lens, 1, block_n))


def test_tail():
    """Programs of 4, 1, 1 tiles twice, on two slots: 4 | 1 1, then 4 after the second of these, and so on."""
    got = tail([4, 1, 1], num_kv_heads=2, num_slots=2)
    assert (got.longest, got.end, got.ideal) == (4, 6, 6.0)
    assert tail([4, 1], 1, 2) == (4, 4, 2.5)
    assert tail([4, 1], 1, 2).waste == pytest.approx(0.375)
    assert tail([], 1, 2).waste == 0


def test_uniform_batches_are_as_before():
    """A batch that fills the GPU is not split; a single sequence is, as finely as now."""
    for num_seqs, seq_len in itertools.product((33, 64, 256), (500, 8192)):
        before, after = before_and_after([seq_len] * num_seqs)
        assert after == before
    for num_seqs in (1, 4, 8):
        before, after = before_and_after([32768] * num_seqs)
        assert after.end <= before.end


@pytest.mark.parametrize(
    ("seq_lens", "least_gain"),
    [
        ([32768] + [1024] * 63, 13),
        ([32768] + [1024] * 7, 3),
        ([1024] * 63 + [32768], 13),
        ([131072, 16384] + [2048] * 126, 14),
    ],
    ids=["1 long of 64", "1 long of 8", "the last of 64 long", "2 long of 128"],
)
def test_one_long_sequence_among_short_ones(seq_lens, least_gain):
    before, after = before_and_after(seq_lens)
    assert before.end >= least_gain * after.end, (before, after)
    assert after.waste < 0.4 < 0.8 < before.waste
