"""Runs the scheduler's plan: the packed batch through the model, logits of the rows that sample."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase.doors import feature
from twophase.engine.packing import pack
from twophase.memory import SCORED_ROWS
from twophase.model.llama import LlamaModel

TakeLogits = Callable[[Float[Tensor, "R V"]], None]
PageWatch = Callable[[Sequence[ScheduledChunk]], AbstractContextManager[Callable[[int], None] | None]]


@runtime_checkable
class Runner(Protocol):
    """The engine's interface for carrying out a plan; `ModelRunner` documents the calls."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None: ...
    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None: ...
    def close(self) -> None: ...


@final
class ModelRunner:
    """A model with its K/V cache. It writes the cache and keeps nothing else between steps.

    Args:
        max_model_len: Tokens of the longest sequence.
        use_cuda_graphs: Replay decode steps as CUDA graphs; takes a CUDA device and the Triton backend, whose
            launches depend on nothing that a replay could change.

    Attributes:
        watch: Called with the chunks of a run; returns a context manager whose value is called with each layer's number
            once the layer's K and V are in pages. None: no call. Watched runs use no CUDA graphs, nor do runs of a
            model whose experts are watched.
    """

    def __init__(
        self,
        model: LlamaModel,
        kv_cache: KVCache,
        max_model_len: int,
        use_cuda_graphs: bool = True,
    ) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self.watch: PageWatch | None = None
        self._graphs: Any = None  # DecodeGraphs
        if kv_cache.device.type == "cuda" and use_cuda_graphs:
            self._graphs = feature("cuda_graphs").decode_graphs(model, kv_cache, max_model_len)

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks of the cache, in every layer."""
        self.kv_cache.copy_blocks(copies)

    @torch.inference_mode()
    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        """Compute at least one chunk; returns fp32 logits of the chunks with samples, in order; None if none has.

        A chunk with drafts has 1 + num_drafts rows: after its newest token and after each draft. Before that, `score`
        is given the logits of the chunks' scored tokens, in order and at most `SCORED_ROWS` at a time, which bounds
        their memory. A chunk may be run again, alone or in another batch: it writes the same K and V into the same
        slots.
        """
        is_watched = self.watch is not None or self.model.watch_experts is not None
        hidden = self._graphs.run(chunks) if self._graphs is not None and not is_watched else None
        if hidden is None:
            is_on_gpu = self.kv_cache.device.type == "cuda"
            cache = self.kv_cache
            packed = pack(chunks, cache.spec.block_size, num_groups=cache.num_groups, pin_memory=is_on_gpu)
            packed = packed.to(cache.device)
            plan = self.model.backend.plan(packed.view())
            with nullcontext() if self.watch is None else self.watch(chunks) as after_layer:
                hidden = self.model.forward(packed.token_ids, plan, self.kv_cache, after_layer)
        if score is not None:
            for rows in _scored_rows(chunks):
                score(self.model.logits(hidden[torch.tensor(rows, device=hidden.device)]))
        return self._logits(chunks, hidden)

    def close(self) -> None:
        """Does nothing: a runner with other processes ends them here."""

    def _logits(self, chunks: Sequence[ScheduledChunk], hidden: Float[Tensor, "T N"]) -> Float[Tensor, "R V"] | None:
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += len(chunk.token_ids)
            if chunk.num_samples:
                rows += range(end - 1 - chunk.num_drafts, end)
        if not rows:
            return None
        if len(rows) < hidden.shape[0]:
            hidden = hidden[torch.tensor(rows, device=hidden.device)]
        return self.model.logits(hidden)


def _scored_rows(chunks: Sequence[ScheduledChunk]) -> Iterator[list[int]]:
    """Rows of the batch whose logits are asked for by `num_scored`, `SCORED_ROWS` at a time."""
    rows: list[int] = []
    start = 0
    for chunk in chunks:
        rows += range(start, start + chunk.num_scored)
        start += len(chunk.token_ids)
    for first in range(0, len(rows), SCORED_ROWS):
        yield rows[first : first + SCORED_ROWS]
