"""Runs a step's plan: packs the chunks into one batch, runs the model, computes the logits of the sampled rows."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from twophase.attention.interface import AttentionBatch
from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.doors import feature
from twophase.memory import SCORED_ROWS
from twophase.model.llama import LlamaModel

TABLE_COLUMNS = 16  # block tables have a multiple of this many columns
ALIGNMENT = 4  # elements: every array starts at a multiple of 16 bytes, for which kernels are compiled

TakeLogits = Callable[[Float[Tensor, "R V"]], None]
PageWatch = Callable[[Sequence[ScheduledChunk]], AbstractContextManager[Callable[[int], None] | None]]


@runtime_checkable
class Runner(Protocol):
    """The engine's interface to the model and its K/V cache; `ModelRunner` documents the calls."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None: ...
    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None: ...
    def close(self) -> None: ...


@final
class ModelRunner:
    """A model with its K/V cache, the only state that a step changes.

    Args:
        max_model_len: Tokens of the longest sequence.
        use_step_graphs: Replay decode steps with the Triton backend: as CUDA graphs, or as launches recorded on a CPU.

    Attributes:
        watch: Makes a context manager around a run, from its chunks. The value that it yields, unless None, is called
            with a layer's number once the layer's K and V are written. Graphs are not replayed meanwhile.
    """

    def __init__(self, model: LlamaModel, kv_cache: KVCache, max_model_len: int, use_step_graphs: bool = True) -> None:
        self.model, self.kv_cache = model, kv_cache
        self.watch: PageWatch | None = None
        self._graphs: Any = None  # DecodeGraphs
        if model.backend.name == "triton" and use_step_graphs:
            self._graphs = feature("step_graphs").decode_graphs(model, kv_cache, max_model_len)

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks of the cache, in every layer."""
        self.kv_cache.copy_blocks(copies)

    @torch.inference_mode()
    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        """Compute one or more chunks; returns fp32 logits [R, V] of the sampled rows, in order; None without any.

        A chunk that samples has one row, for its last token, and one more for each draft. A chunk may be run again,
        alone or in another batch: it writes the same K and V into the same slots. `score` is called with the logits of
        the chunks' `num_scored` first tokens, in order, `SCORED_ROWS` at a time.
        """
        is_watched = self.watch is not None or self.model.watch_experts is not None
        hidden = self._graphs.run(chunks) if self._graphs is not None and not is_watched else None
        if hidden is None:
            cache, is_on_gpu = self.kv_cache, self.kv_cache.device.type == "cuda"
            packed = pack(chunks, cache.spec.block_size, num_groups=cache.num_groups, pin_memory=is_on_gpu)
            packed = packed.to(cache.device)
            plan = self.model.backend.plan(packed.view())
            with nullcontext() if self.watch is None else self.watch(chunks) as after_layer:
                hidden = self.model.forward(packed.token_ids, plan, self.kv_cache, after_layer)
        starts = list(accumulate((len(chunk.token_ids) for chunk in chunks), initial=0))
        if score is not None:
            scored = [starts[i] + row for i, chunk in enumerate(chunks) for row in range(chunk.num_scored)]
            for first in range(0, len(scored), SCORED_ROWS):
                score(self._logits(hidden, scored[first : first + SCORED_ROWS]))
        ends = zip(chunks, starts[1:], strict=True)
        rows = [row for chunk, end in ends if chunk.num_samples for row in range(end - 1 - chunk.num_drafts, end)]
        return self._logits(hidden, rows) if rows else None

    def close(self) -> None:
        """Does nothing; the runner of a tensor-parallel model ends the other processes here."""

    def _logits(self, hidden: Float[Tensor, "T N"], rows: list[int]) -> Float[Tensor, "R V"]:
        chosen = hidden[torch.tensor(rows, device=hidden.device)] if len(rows) < len(hidden) else hidden
        return self.model.logits(chosen)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A step's chunks without padding between sequences, in few buffers, so that moving it to a device is few copies.

    Attributes:
        num_tokens: T.
        longs: Rows of token ids, of positions, and of slots for each group of layers; the first T columns are used.
        lens: Rows of sequence lengths, of which S are used, and of cumulative query lengths, S + 1.
        tables: Block tables of each group.
        query_lens, seq_lens: As Python ints.
    """

    num_tokens: int
    longs: Int64[Tensor, "R N"]
    lens: Int32[Tensor, "2 M"]
    tables: Int32[Tensor, "G S W"]
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]

    @property
    def token_ids(self) -> Int64[Tensor, "T"]:
        return self.longs[0, : self.num_tokens]

    def view(self) -> AttentionBatch:
        """The batch as views of the buffers."""
        _, positions, *slots = self.longs[:, : self.num_tokens]
        num_seqs = len(self.query_lens)
        seq_lens, cu_query_lens = self.lens[0, :num_seqs], self.lens[1, : num_seqs + 1]
        num_decodes = next((s for s, length in enumerate(self.query_lens) if length != 1), num_seqs)
        lengths = (num_decodes, self.query_lens, self.seq_lens)
        batches = tuple(
            AttentionBatch(positions, slots_of_group, seq_lens, cu_query_lens, table, *lengths)
            for slots_of_group, table in zip(slots, self.tables, strict=True)
        )
        return batches[0] if len(batches) == 1 else replace(batches[0], groups=batches)

    def to(self, device: torch.device) -> "PackedBatch":
        buffers = {name: getattr(self, name).to(device, non_blocking=True) for name in ("longs", "lens", "tables")}
        return replace(self, **buffers)


def pack(
    chunks: Sequence[ScheduledChunk],
    block_size: int,
    *,
    num_groups: int = 1,
    num_rows: int = 0,
    num_tokens: int | None = None,
    num_columns: int | None = None,
    pin_memory: bool = False,
) -> PackedBatch:
    """Pack one or more chunks, on the host. One-token chunks at the front count as decodes, also one-token prefills.

    Args:
        num_groups: Groups of layers; a chunk's block table has one block per group for the same tokens, side by side.
        num_rows, num_tokens, num_columns: Pad decodes to the fixed shape of a CUDA graph. A padding row is a sequence
            of length 0 with one token; further tokens up to `num_tokens` belong to no sequence. Padding has slot -1.
        pin_memory: For a non-blocking copy to a GPU. PyTorch reuses pinned memory only after the copy.
    """
    num_padding = max(0, num_rows - len(chunks))
    query_lens = (*(len(chunk.token_ids) for chunk in chunks), *[1] * num_padding)
    seq_lens = (*(chunk.start + len(chunk.token_ids) for chunk in chunks), *[0] * num_padding)
    num_tokens = num_tokens or sum(query_lens)
    longest = max(len(chunk.block_ids) for chunk in chunks) // num_groups
    num_columns = num_columns or -(-longest // TABLE_COLUMNS) * TABLE_COLUMNS
    num_rows = len(query_lens)
    longs = torch.zeros(2 + num_groups, _aligned(num_tokens), dtype=torch.int64, pin_memory=pin_memory)
    lens = torch.zeros(2, _aligned(num_rows + 1), dtype=torch.int32, pin_memory=pin_memory)
    tables = torch.zeros(num_groups, num_rows, num_columns, dtype=torch.int32, pin_memory=pin_memory)
    packed = PackedBatch(num_tokens, longs, lens, tables, query_lens, seq_lens)
    _fill(packed, chunks, block_size)
    return packed


def _fill(packed: PackedBatch, chunks: Sequence[ScheduledChunk], block_size: int) -> None:
    """Write chunks into the zeroed buffers of a packed batch."""
    token_ids, positions, *slots = packed.longs.numpy()[:, : packed.num_tokens]
    (seq_lens, cu_query_lens), tables = packed.lens.numpy(), packed.tables.numpy()
    num_groups, num_seqs, num_rows = len(slots), len(chunks), len(packed.seq_lens)
    seq_lens[:num_rows] = packed.seq_lens
    np.cumsum(packed.query_lens, out=cu_query_lens[1 : num_rows + 1])
    num_tokens = int(cu_query_lens[num_seqs])
    token_ids[:num_tokens] = _array(chain.from_iterable(chunk.token_ids for chunk in chunks), num_tokens)
    num_blocks = _array((len(chunk.block_ids) // num_groups for chunk in chunks), num_seqs)
    block_ids = _array(chain.from_iterable(chunk.block_ids for chunk in chunks), int(num_blocks.sum()) * num_groups)
    has_block = np.arange(tables.shape[2]) < num_blocks[:, None]
    owner = np.repeat(np.arange(num_seqs), packed.query_lens[:num_seqs])
    starts = _array((chunk.start for chunk in chunks), num_seqs)
    positions[:num_tokens] = np.arange(num_tokens) + (starts - cu_query_lens[:num_seqs])[owner]
    block, offset = np.divmod(positions[:num_tokens], block_size)
    for group, table in enumerate(tables):
        table[:num_seqs][has_block] = block_ids[group::num_groups]
        slots[group][:] = -1
        slots[group][:num_tokens] = table[owner, block].astype(np.int64) * block_size + offset


def _array(values: Iterable[int], count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, np.int64, count)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
