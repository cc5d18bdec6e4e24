"""A step's chunks as flat arrays: a ragged batch, without padding between sequences or a loop over tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from twophase.attention.interface import AttentionBatch
from twophase.core.plan import ScheduledChunk

TABLE_COLUMNS = 16  # block tables have a multiple of this many columns
ALIGNMENT = 4  # elements; every array starts at a multiple of 16 bytes, because kernels are compiled for such pointers


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch in two buffers, so that moving it to a device is two copies.

    Attributes:
        num_tokens, num_columns: T, and W of the block tables.
        longs: Token ids, positions, slots: T each; slots once for each group of layers.
        ints: Block tables (for each group S rows, W columns), sequence lengths (S), cumulative query lengths (S + 1).
        query_lens, seq_lens: The lengths on the host.
        num_groups: Groups of layers.
    """

    num_tokens: int
    num_columns: int
    longs: Int64[Tensor, "n"]
    ints: Int32[Tensor, "m"]
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_groups: int = 1

    @property
    def token_ids(self) -> Int64[Tensor, "T"]:
        return self.longs[: self.num_tokens]

    def view(self) -> AttentionBatch:
        """The batch as views of the two buffers."""
        batches = tuple(map(self._view_of, range(self.num_groups)))
        return batches[0] if self.num_groups == 1 else replace(batches[0], groups=batches)

    def _view_of(self, group: int) -> AttentionBatch:
        num_seqs, stride = len(self.query_lens), _aligned(self.num_tokens)
        slots_start, tables_start = (2 + group) * stride, group * num_seqs * self.num_columns
        lens_start = self.num_groups * num_seqs * self.num_columns
        cu_start = lens_start + _aligned(num_seqs)
        return AttentionBatch(
            positions=self.longs[stride : stride + self.num_tokens],
            slot_mapping=self.longs[slots_start : slots_start + self.num_tokens],
            cu_query_lens=self.ints[cu_start : cu_start + num_seqs + 1],
            seq_lens=self.ints[lens_start : lens_start + num_seqs],
            block_tables=self.ints[tables_start : tables_start + num_seqs * self.num_columns].view(
                num_seqs, self.num_columns
            ),
            num_decodes=next((s for s, length in enumerate(self.query_lens) if length != 1), num_seqs),
            query_lens_host=self.query_lens,
            seq_lens_host=self.seq_lens,
        )

    def to(self, device: torch.device) -> "PackedBatch":
        longs, ints = (buffer.to(device, non_blocking=True) for buffer in (self.longs, self.ints))
        return replace(self, longs=longs, ints=ints)


def pack(
    chunks: Sequence[ScheduledChunk],
    block_size: int,
    *,
    num_groups: int = 1,
    num_rows: int | None = None,
    num_tokens: int | None = None,
    num_columns: int | None = None,
    pin_memory: bool = False,
) -> PackedBatch:
    """Pack at least one chunk, on the host.

    Every chunk of one token counts as a decode, because it is computed in the same way.

    Args:
        num_groups: Groups of layers; a chunk's table lists one block for each group, then the next blocks.
        num_rows, num_tokens, num_columns: Pad decodes to the fixed shape of a CUDA graph. A padding row is a sequence
            of length 0 with one token (it attends to nothing); further tokens up to `num_tokens` belong to no sequence.
            All have slot -1 (they write nothing).
        pin_memory: For a copy to a GPU that does not block. PyTorch's pinned allocator keeps such memory for reuse,
            and only after copies from it are done.
    """
    num_seqs = len(chunks)
    starts = _array((chunk.start for chunk in chunks), num_seqs)
    query_lens = _array((len(chunk.token_ids) for chunk in chunks), num_seqs)
    num_blocks = _array((len(chunk.block_ids) // num_groups for chunk in chunks), num_seqs)
    num_real, num_padding = int(query_lens.sum()), max(0, (num_rows or 0) - num_seqs)
    columns = num_columns or -(-int(num_blocks.max()) // TABLE_COLUMNS) * TABLE_COLUMNS
    packed = _allocate(
        num_tokens or num_real + num_padding,
        columns,
        (*query_lens.tolist(), *[1] * num_padding),
        (*(starts + query_lens).tolist(), *[0] * num_padding),
        num_groups,
        pin_memory,
    )
    batch = packed.view()

    has_block = np.arange(columns) < num_blocks[:, None]
    num_ids = int(num_blocks.sum()) * num_groups
    block_ids = _array(chain.from_iterable(c.block_ids for c in chunks), num_ids).reshape(-1, num_groups)
    batch.seq_lens.numpy()[:] = packed.seq_lens
    cu_query_lens = batch.cu_query_lens.numpy()
    np.cumsum(packed.query_lens, out=cu_query_lens[1:])

    packed.token_ids.numpy()[:num_real] = _array(chain.from_iterable(c.token_ids for c in chunks), num_real)
    owner = np.repeat(np.arange(num_seqs), query_lens)
    positions = np.arange(num_real) + (starts - cu_query_lens[:num_seqs])[owner]
    batch.positions.numpy()[:num_real] = positions
    for group, part in enumerate(batch.groups or (batch,)):
        tables = part.block_tables.numpy()  # all zeros so far
        tables[:num_seqs][has_block] = block_ids[:, group]
        slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
        part.slot_mapping.numpy()[:] = -1
        part.slot_mapping.numpy()[:num_real] = slots
    return packed


def _allocate(
    num_tokens: int,
    num_columns: int,
    query_lens: tuple[int, ...],
    seq_lens: tuple[int, ...],
    num_groups: int,
    pin_memory: bool,
) -> PackedBatch:
    num_seqs = len(query_lens)
    num_ints = num_groups * num_seqs * num_columns + _aligned(num_seqs) + _aligned(num_seqs + 1)
    longs = torch.zeros((2 + num_groups) * _aligned(num_tokens), dtype=torch.int64, pin_memory=pin_memory)
    ints = torch.zeros(num_ints, dtype=torch.int32, pin_memory=pin_memory)
    return PackedBatch(num_tokens, num_columns, longs, ints, query_lens, seq_lens, num_groups)


def _array(values: Iterable[int], count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, np.int64, count)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
