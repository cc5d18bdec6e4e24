"""A packed batch holds what a loop over tokens would put there; padding rows write and read nothing."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutation import KillTable, Mutant
from twophase.core.plan import ScheduledChunk
from twophase.engine import runner
from twophase.engine.runner import TABLE_COLUMNS, pack


def chunk(seq_id, token_ids, start, block_ids, num_samples=1):
    return ScheduledChunk(seq_id, token_ids, start, block_ids, num_samples)


@st.composite
def chunk_lists(draw):
    """Arguments of `chunk`. The chunks are made later: the check of their types looks at random elements of a list,
    and hypothesis wants a strategy to draw all that is random."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    chunks = []
    for seq_id in range(draw(st.integers(1, 9))):
        start, count = draw(st.integers(0, 40)), draw(st.sampled_from([1, 1, 1, 2, 5, 17]))
        num_blocks = -(-(start + count) // block_size) + draw(st.integers(0, 2))
        block_ids = draw(st.lists(st.integers(0, 10**6), min_size=num_blocks, max_size=num_blocks))
        chunks.append((seq_id, [draw(st.integers(0, 9)) for _ in range(count)], start, block_ids))
    return block_size, chunks


@given(chunk_lists())
@settings(max_examples=100, deadline=None)
def test_equals_a_loop_over_tokens(case):
    check_packing(runner, case)


def check_packing(module, case):
    pack, block_size, chunks = module.pack, case[0], [chunk(*arguments) for arguments in case[1]]
    packed = pack(chunks, block_size)
    batch = packed.view()
    tokens, positions, slots, cu = [], [], [], [0]
    for c in chunks:
        for offset, token in enumerate(c.token_ids):
            position = c.start + offset
            tokens.append(token)
            positions.append(position)
            slots.append(c.block_ids[position // block_size] * block_size + position % block_size)
        cu.append(len(tokens))
    assert packed.arrays["token_ids"].tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.slot_mapping.tolist() == slots
    assert batch.cu_query_lens.tolist() == cu
    assert batch.seq_lens.tolist() == list(batch.seq_lens_host) == [c.start + len(c.token_ids) for c in chunks]
    assert batch.query_lens_host == tuple(len(c.token_ids) for c in chunks)
    assert batch.block_tables.shape[1] % TABLE_COLUMNS == 0
    for row, c in zip(batch.block_tables.tolist(), chunks, strict=True):
        assert row == [*c.block_ids, *[0] * (len(row) - len(c.block_ids))]
    lengths = [len(c.token_ids) for c in chunks]
    assert batch.num_decodes == next((i for i, length in enumerate(lengths) if length > 1), len(lengths))
    check_groups(module, block_size, chunks, batch)


def check_groups(module, block_size, chunks, alone):
    """Each of three groups has the batch that it would have alone, but for its blocks."""
    assert alone.groups == ()
    tables = [[[3 * block + group for block in c.block_ids] for c in chunks] for group in range(3)]
    together = [
        c._replace(block_ids=[block for place in zip(*(table[i] for table in tables), strict=True) for block in place])
        for i, c in enumerate(chunks)
    ]
    padding = {"num_rows": len(chunks) + 2} if all(len(c.token_ids) == 1 for c in chunks) else {}
    batch = module.pack(together, block_size, num_groups=3, **padding).view()
    assert len(batch.groups) == 3
    for group, table in enumerate(tables):
        own = [c._replace(block_ids=blocks) for c, blocks in zip(chunks, table, strict=True)]
        expected, found = module.pack(own, block_size, **padding).view(), batch.groups[group]
        for field in dataclasses.fields(expected):
            one, two = getattr(expected, field.name), getattr(found, field.name)
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two, field.name


GROUP_CASES = [(4, [(0, [1], 5, [7, 9]), (1, [2, 3, 4], 2, [1, 2]), (2, [5], 0, [3])]), (1, [(0, [4], 1, [5, 6])])]
GROUP_MUTANTS = [
    ("every group has the first one's blocks", "block_ids[group::num_groups]", "block_ids[::num_groups]"),
    ("slots of the first group", "AttentionBatch(positions, slots_of_group[", "AttentionBatch(positions, slots[0]["),
    ("tables of the first group", "cu_query_lens, table, *lengths", "cu_query_lens, tables[0], *lengths"),
    ("tables one after the other", "block_ids[group::num_groups]", "block_ids[group * len(block_ids) // num_groups :][: len(block_ids) // num_groups]"),
    ("tables as long as all groups'", "len(chunk.block_ids) // num_groups", "len(chunk.block_ids)"),
    ("padding writes in other groups", "num_tokens + num_tokens % 2), -1)", "num_tokens + num_tokens % 2), -(np.arange(num_groups)[:, None] == 0).astype(int))"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), GROUP_MUTANTS, ids=[row[0] for row in GROUP_MUTANTS])
def test_group_mutants_are_killed(name, old, new):
    def check(module):
        for case in GROUP_CASES:
            check_packing(module, case)

    check(runner)
    KillTable.record(Mutant(name, "twophase.engine.runner", old, new), check)


@pytest.mark.parametrize("num_seqs", [1, 2, 3, 5, 8])
def test_every_array_is_aligned_to_16_bytes(num_seqs):
    chunks = [chunk(i, [1] * (i + 1), i, list(range(9))) for i in range(num_seqs)]
    packed = pack([c._replace(block_ids=[*range(18)]) for c in chunks], 4, num_groups=2)
    batch = packed.view()
    second = batch.groups[1]
    arrays = (batch.positions, batch.slot_mapping, batch.block_tables, batch.seq_lens, batch.cu_query_lens)
    for array in (*arrays, second.slot_mapping, second.block_tables):
        assert array.data_ptr() % 16 == 0  # torch's buffers begin at multiples of 64


def test_padding_rows():
    chunks = [chunk(0, [7], 5, [3, 9]), chunk(1, [8], 0, [4])]
    packed = pack(chunks, 4, num_rows=4, num_columns=32)
    batch = packed.view()
    assert packed.arrays["token_ids"].tolist() == [7, 8, 0, 0]
    assert batch.slot_mapping.tolist() == [37, 16, -1, -1]
    assert batch.seq_lens.tolist() == [6, 1, 0, 0]
    assert batch.positions.tolist() == [5, 0, 0, 0]
    assert batch.cu_query_lens.tolist() == [0, 1, 2, 3, 4]
    assert batch.block_tables.shape == (4, 32)
    assert batch.num_decodes == 4
