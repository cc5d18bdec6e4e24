"""Steps with prompts in pieces of graphs: all that lies between two layers' attention is a graph.

How attention is launched depends on the step's chunks. All else in a layer depends on the number of tokens alone, which
is rounded up to a few sizes. So a layer takes three calls of the host (a graph, attention, a copy) where eager kernels
take ten or more.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import PackedBatch, pack
from twophase.model.llama import LlamaModel

logger = logging.getLogger(__name__)

TOKENS_STEP = 64  # numbers of tokens are rounded up to its multiples


# Hidden states of all tokens of a step, and of its sampled rows.
States = tuple[Float[Tensor, "T N"], Float[Tensor, "R N"]] | tuple[None, None]


@runtime_checkable
class Way(Protocol):
    """How a piece is captured: as a CUDA graph, or as recorded launches (step_graphs.py)."""

    max_piece_tokens: int

    def warm_up(self, forward: Callable[[], Any]) -> None: ...
    def capture(self) -> AbstractContextManager[Any]:
        """Captures the launches within it; `replay()` of the value that it yields repeats them."""


class _Pieces(NamedTuple):
    """The pieces of one forward pass; between piece i and the next comes attention of layer i."""

    graphs: list[Any]
    inputs: PackedBatch
    hidden: Float[Tensor, "T N"]


def piece_sizes(max_tokens: int) -> range:
    """The numbers of tokens to which steps of up to `max_tokens` are rounded up, the largest first."""
    return range(-(-max_tokens // TOKENS_STEP) * TOKENS_STEP, 0, -TOKENS_STEP)


@final
class PiecewiseGraphs:
    """The pieces of one model over one cache, by number of tokens. Only `DecodeGraphs` uses it.

    Queries go to attention, and its result to the next piece, through two buffers that all layers share. A number of
    tokens whose capture fails is logged once, and such steps run eagerly from then on.
    """

    def __init__(self, model: LlamaModel, kv_cache: KVCache, way: Way) -> None:
        self._model, self._kv_cache, self._way = model, kv_cache, way
        self._pieces: dict[int, _Pieces | None] = {}
        shape = (2, way.max_piece_tokens, model.config.num_heads, model.config.head_dim)
        # Zeros, so that of padding no number is NaN.
        self._queries, self._attended = torch.zeros(shape, dtype=model.weights.dtype, device=model.device)

    def capture_all(self, max_tokens: int) -> None:
        """Capture the sizes of steps of up to `max_tokens` tokens."""
        for num_tokens in piece_sizes(min(max_tokens, self._way.max_piece_tokens)):
            self._pieces[num_tokens] = self._try_capture(num_tokens)

    def run(self, chunks: Sequence[ScheduledChunk]) -> States:
        """A step's hidden states, valid until the next run; (None, None) if it must run eagerly."""
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        size = -(-num_tokens // TOKENS_STEP) * TOKENS_STEP
        if size > self._way.max_piece_tokens:
            return None, None
        if size not in self._pieces:
            self._pieces[size] = self._try_capture(size)
        pieces = self._pieces[size]
        if pieces is None:
            return None, None
        cache, backend = self._kv_cache, self._model.backend
        packed = pack(chunks, cache.spec.block_size, num_groups=cache.num_groups, device=cache.device)
        plan = backend.plan(packed.view())
        pieces.inputs.arrays["slots"].fill_(-1)
        for name in ("token_ids", "positions", "slots"):
            pieces.inputs.arrays[name][..., :num_tokens].copy_(packed.arrays[name][..., :num_tokens])
        *firsts, last = pieces.graphs
        with torch.cuda.device_of(self._queries):  # Triton launches on the current device
            for graph, kv in zip(firsts, cache.layers, strict=True):
                graph.replay()
                self._attended[:num_tokens].copy_(backend.attend(self._queries[:num_tokens], kv, plan))
            last.replay()
        hidden = pieces.hidden[:num_tokens]
        return hidden, hidden[packed.arrays["rows"]]

    def _try_capture(self, num_tokens: int) -> _Pieces | None:
        try:
            return self._captured(num_tokens)
        except Exception as error:
            logger.warning("Graphs of %d tokens failed, so such steps run eagerly: %s", num_tokens, error)
            return None

    def _captured(self, num_tokens: int) -> _Pieces:
        cache, graphs = self._kv_cache, []
        nothing = ScheduledChunk(0, (0,), 0, (0,) * cache.num_groups, 1)
        inputs = pack(
            [nothing], cache.spec.block_size, num_groups=cache.num_groups, num_rows=1, num_tokens=num_tokens,
            device=cache.device,
        )  # fmt: skip
        inputs.arrays["slots"].fill_(-1)  # no K and V are written by the captures
        self._way.warm_up(lambda: self._forward(inputs, torch.zeros_like))
        with contextlib.ExitStack() as open_capture:

            def attend(q: Tensor) -> Tensor:
                self._queries[:num_tokens].copy_(q)
                open_capture.close()
                graphs.append(open_capture.enter_context(self._way.capture()))
                return self._attended[:num_tokens]

            graphs.append(open_capture.enter_context(self._way.capture()))
            hidden = self._forward(inputs, attend)
        return _Pieces(graphs, inputs, hidden)

    def _forward(self, inputs: PackedBatch, attend: Callable[[Tensor], Tensor]) -> Float[Tensor, "T N"]:
        """The model's forward pass, with `attend` in place of attention."""
        model = copy(self._model)
        model.backend = _Parted(self._model.backend, attend)  # type: ignore[assignment]
        return model.forward(inputs.arrays["token_ids"], self._model.backend.plan(inputs.view()), self._kv_cache)


class _Parted:
    """A backend whose attention is another function of the queries."""

    def __init__(self, backend: Any, attend: Callable[[Tensor], Tensor]) -> None:
        self._backend, self._attend = backend, attend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def attend(self, q: Tensor, kv: Any, plan: Any) -> Tensor:
        return self._attend(q)
