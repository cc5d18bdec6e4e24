"""Runs a step's plan: packs the chunks into one batch, runs the model, computes the logits of the sampled rows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Shaped, UInt8
from torch import Tensor

from twophase.attention.interface import AttentionBatch
from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.doors import feature
from twophase.model.llama import LlamaModel

TABLE_COLUMNS = 16  # block tables have a multiple of this many columns
ALIGNMENT = 16  # bytes: kernels are compiled for arrays that start at a multiple

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
        graphs: Replay decode steps (twophase_features.step_graphs.DecodeGraphs); None: all steps run eagerly.
    """

    def __init__(self, model: LlamaModel, kv_cache: KVCache, max_model_len: int, use_step_graphs: bool = True) -> None:
        self.model, self.kv_cache = model, kv_cache
        self.watch: PageWatch | None = None
        self.graphs: Any = None
        if model.backend.name == "triton" and use_step_graphs:
            self.graphs = feature("step_graphs").decode_graphs(model, kv_cache, max_model_len)

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks of the cache, in every layer."""
        self.kv_cache.copy_blocks(copies)

    @torch.inference_mode()
    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        """Compute one or more chunks; returns fp32 logits [R, V] of the sampled rows, in order; None without any.

        A chunk that samples has one row, for its last token, and one more for each draft. A chunk may be run again,
        alone or in another batch: it writes the same K and V into the same slots. `score` is called with the logits of
        the chunks' `num_scored` first tokens, in order, a few at a time.
        """
        is_watched = self.watch is not None or self.model.watch_experts is not None
        replayed: Any = (None, None) if self.graphs is None else self.graphs.run(chunks, is_watched)
        hidden, sampled = replayed  # states of all tokens, and of the sampled rows
        if hidden is None:
            cache, device = self.kv_cache, self.kv_cache.device
            packed = pack(chunks, cache.spec.block_size, num_groups=cache.num_groups, device=device)
            plan = self.model.backend.plan(packed.view())
            with nullcontext() if self.watch is None else self.watch(chunks) as after_layer:
                hidden = self.model.forward(packed.arrays["token_ids"], plan, self.kv_cache, after_layer)
            sampled = hidden[packed.arrays["rows"]]
        if score is not None:
            feature("logprobs").score_rows(chunks, hidden, self.model.logits, score)
        return self.model.logits(sampled) if len(sampled) else None

    def look_ahead(self, token_ids: Int[Tensor, "D"]) -> None:
        """The latest run's tokens are drawn, and the host is about to wait for them: a GPU begins the next step."""
        if self.graphs is not None:
            self.graphs.look_ahead(token_ids)

    def close(self) -> None:
        """Does nothing; the runner of a tensor-parallel model ends the other processes here."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Arrays that travel to a device in one buffer, by one copy. `places`: where each lies, its dtype and its shape."""

    buffer: UInt8[Tensor, "B"]
    places: Mapping[str, tuple[slice, torch.dtype, Any]]

    @classmethod
    def of(cls, arrays: Mapping[str, Shaped[np.ndarray, "..."]], device: torch.device | str) -> "Parcel":
        """Copies of the arrays on the device, sent from pinned memory, which PyTorch reuses when they are there."""
        ends = list(accumulate((-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in arrays.values()), initial=0))
        buffer = torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=torch.device(device).type == "cuda")
        places = {}
        for start, (name, array) in zip(ends, arrays.items(), strict=False):
            where = slice(start, start + array.nbytes)
            places[name] = (where, torch.from_numpy(array).dtype, array.shape)
            buffer.numpy()[where] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(buffer.to(device, non_blocking=True), places)

    def __getitem__(self, name: str) -> Tensor:
        where, dtype, shape = self.places[name]
        return self.buffer[where].view(dtype).view(shape)


def read(tensors: Sequence[Tensor], meanwhile: Callable[[], Any]) -> list[Float64[np.ndarray, "..."]]:
    """The values of tensors, for which the host waits once; what `meanwhile` queues is behind them in the device's
    queue, and not waited for. fp64 holds a token id, or an fp32 number, exactly."""
    values = torch.cat([tensor.flatten().double() for tensor in tensors]).to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(tensors[0].device).record_event() if tensors[0].is_cuda else None
    meanwhile()
    if arrived is not None:
        arrived.synchronize()
    parts = np.split(values.numpy(), list(accumulate(tensor.numel() for tensor in tensors))[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A step's chunks without padding between sequences, in one buffer, so that moving it to a device is one copy.

    Attributes:
        arrays: int64 'token_ids' [T], 'positions' [T], 'slots' [G, T or one more] of each group of layers, 'rows' (the
            sampled ones; not of a graph); int32 'seq_lens' [S], 'cu_query_lens' [S + 1] and 'tables' [G, S, W].
        query_lens, seq_lens: As Python ints.
    """

    arrays: Parcel
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]

    def view(self) -> AttentionBatch:
        """The batch as views of the buffer."""
        names = ("positions", "seq_lens", "cu_query_lens", "slots", "tables")
        positions, seq_lens, cu_query_lens, slots, tables = (self.arrays[name] for name in names)
        num_decodes = next((s for s, length in enumerate(self.query_lens) if length != 1), len(self.query_lens))
        lengths = (num_decodes, self.query_lens, self.seq_lens)
        batches = tuple(
            AttentionBatch(positions, slots_of_group[: len(positions)], seq_lens, cu_query_lens, table, *lengths)
            for slots_of_group, table in zip(slots, tables, strict=True)
        )
        return batches[0] if len(batches) == 1 else replace(batches[0], groups=batches)


def pack(
    chunks: Sequence[ScheduledChunk],
    block_size: int,
    *,
    num_groups: int = 1,
    num_rows: int = 0,
    num_tokens: int | None = None,
    num_columns: int | None = None,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Pack one or more chunks, on the device. One-token chunks at the front count as decodes, also one-token prefills.

    Args:
        num_groups: Groups of layers; a chunk's block table has one block per group for the same tokens, side by side.
        num_rows, num_tokens, num_columns: Pad decodes to the fixed shape of a CUDA graph. A padding row is a sequence
            of length 0 with one token; further tokens up to `num_tokens` belong to no sequence. Padding has slot -1.
    """
    is_padded, num_padding = num_rows > 0, max(0, num_rows - len(chunks))
    query_lens = (*(len(chunk.token_ids) for chunk in chunks), *[1] * num_padding)
    seq_lens = (*(chunk.start + len(chunk.token_ids) for chunk in chunks), *[0] * num_padding)
    num_tokens, num_rows = num_tokens or sum(query_lens), len(query_lens)
    longest = max(len(chunk.block_ids) for chunk in chunks) // num_groups
    num_columns = num_columns or -(-longest // TABLE_COLUMNS) * TABLE_COLUMNS
    num_seqs, bounds = len(chunks), np.cumsum([0, *query_lens], dtype=np.int32)
    num_used = int(bounds[num_seqs])
    token_ids, positions = np.zeros((2, num_tokens), np.int64)
    slots = np.full((num_groups, num_tokens + num_tokens % 2), -1)  # each row is aligned, too
    tables = np.zeros((num_groups, num_rows, num_columns), np.int32)
    token_ids[:num_used] = np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), np.int64, num_used)
    num_blocks = np.array([len(chunk.block_ids) // num_groups for chunk in chunks])
    block_ids = np.fromiter(chain.from_iterable(chunk.block_ids for chunk in chunks), np.int64)
    has_block = np.arange(num_columns) < num_blocks[:, None]
    owner = np.repeat(np.arange(num_seqs), query_lens[:num_seqs])
    starts = np.array([chunk.start for chunk in chunks])
    positions[:num_used] = np.arange(num_used) + (starts - bounds[:num_seqs])[owner]
    block, offset = np.divmod(positions[:num_used], block_size)
    for group, table in enumerate(tables):
        table[:num_seqs][has_block] = block_ids[group::num_groups]
        slots[group, :num_used] = table[owner, block].astype(np.int64) * block_size + offset
    sampling = [] if is_padded else [i for i, chunk in enumerate(chunks) if chunk.num_samples]
    rows = [row for i in sampling for row in range(bounds[i + 1] - 1 - chunks[i].num_drafts, bounds[i + 1])]
    arrays = {"token_ids": token_ids, "positions": positions, "slots": slots, "rows": np.array(rows, np.int64)}
    arrays |= {"seq_lens": np.array(seq_lens, np.int32), "cu_query_lens": bounds, "tables": tables}
    return PackedBatch(Parcel.of(arrays, device), query_lens, seq_lens)
