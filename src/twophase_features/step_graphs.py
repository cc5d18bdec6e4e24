"""Decode steps as graphs: one call for a whole forward pass, where Python would launch hundreds of kernels.

A graph is captured in one of two ways, and repeats its work on the same memory: a CUDA graph, or, for kernels that are
compiled for the CPU, a recorded list of launches that C goes through. CUDA graphs are captured at start-up, the largest
first: smaller ones use the same memory. Steps with prompts run in pieces (piecewise_graphs.py).

A graph has fixed shapes and addresses. So decodes are padded to a few batch sizes, contexts are rounded up for the
host-side choices (how many splits) and for the width of block tables, and each graph reads its inputs from buffers of
its own, filled before a replay.

Decodes that verify drafts have graphs too, one for each number of drafts. Sequences may have fewer drafts or none: the
graph has room for the most drafts of any sequence. The batch stays ragged, with its cumulative lengths as an input, and
the unused tokens are at its end.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import TABLE_COLUMNS, PackedBatch, pack
from twophase.model.llama import LlamaModel
from twophase_features.look_ahead import LookAhead, Room
from twophase_features.piecewise_graphs import PiecewiseGraphs, States
from twophase_features.triton.huge_pages import begin_in_huge_pages
from twophase_kernels import mode

logger = logging.getLogger(__name__)

MIN_GRAPH_CONTEXT = 1024
CONTEXT_GROWTH = 4  # 1024, 4096, 16384, ...: the number of splits is chosen for the rounded context


class _Shape(NamedTuple):
    """A graph's shape: sequences, and the most tokens (drafts and the newest) and keys of a sequence."""

    num_rows: int
    max_query_len: int
    context: int


class _Graph(NamedTuple):
    graph: Any  # with `replay`
    inputs: PackedBatch
    hidden: Float[Tensor, "T N"]


@final
class CudaGraphs:
    """CUDA graphs of one device, which share their memory: at most one is replayed at a time."""

    max_tokens = 256  # larger batches compute long enough to hide their launches
    max_piece_tokens = 512
    num_warmups = 2
    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        # A stream of this device: torch's own capture stream belongs to the device that captured first. One for all
        # captures, because libraries hold a workspace for each stream.
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, forward: Callable[[], Any]) -> None:
        """Compile kernels and initialise libraries, which a capture cannot."""
        stream = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(stream)
        with torch.cuda.stream(self._stream):
            for _ in range(self.num_warmups):
                forward()
        stream.wait_stream(self._stream)

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Captures the launches within it; `replay()` of the value that it yields repeats them."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # Other threads may allocate and wait meanwhile, as the receiver of another process's pages does.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                yield graph
        except Exception:
            torch.cuda.set_stream(stream)  # the end of a capture that failed raises before it does so
            raise


@final
class RecordedLaunches:
    """Launches on the CPU as a list that C goes through, and between them what torch computes. Called as `CudaGraphs`.

    Each recording keeps all that its step computes, so its memory grows with the tokens: 1 MB each for SmolLM2.
    """

    max_tokens = 32
    max_piece_tokens = 0  # the products of more tokens compute long enough to hide their launches
    runs_ahead = False  # a replay has ended when it returns

    def warm_up(self, forward: Callable[[], Any]) -> None:
        """Nothing to do."""

    @contextmanager
    def capture(self) -> Iterator[Any]:
        import triton_on_cpu

        with triton_on_cpu.record(torch_operations=True) as recording:
            yield recording


Capture = CudaGraphs | RecordedLaunches


def decode_graphs(model: LlamaModel, kv_cache: KVCache, max_model_len: int) -> "DecodeGraphs | None":
    """Graphs for a model's decode steps; None, and a line in the log, if they cannot be captured."""
    why_not = "" if mode() in ("cuda", "cpu") else f"kernels are {mode()}"
    if not all(layer.mlp.can_be_captured for layer in model.weights.layers):
        why_not = "the host assigns rows to experts"
    if why_not:
        logger.info("%s: decodes run eagerly", why_not)
        return None
    if mode() == "cuda":
        graphs = DecodeGraphs(model, kv_cache, max_model_len, CudaGraphs(kv_cache.device))
        graphs.capture_all()
        return graphs
    begin_in_huge_pages(kv_cache.storage)
    return DecodeGraphs(model, kv_cache, max_model_len, RecordedLaunches())


@final
class DecodeGraphs:
    """Graphs of one model over one cache, captured by `capture_all` or when first needed. Only the runner uses it.

    A shape whose capture fails is logged once, and its decodes run eagerly from then on.

    Attributes:
        ahead: Begins the next step before the host knows this one's tokens; None where that gains nothing.
        room: The room for it, in the place of an engine's speculator; None without `ahead`.
        pieces: Runs steps with prompts; None: they run eagerly.
    """

    def __init__(self, model: LlamaModel, kv_cache: KVCache, max_model_len: int, capture: Capture) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._max_model_len = max_model_len
        self._way = capture
        self._graphs: dict[_Shape, _Graph | None] = {}
        self.ahead: LookAhead | None = None
        if capture.runs_ahead:
            self.ahead = LookAhead(self.replay, kv_cache.spec.block_size, kv_cache.num_groups, max_model_len)
        self.room = None if self.ahead is None else Room(self.ahead)
        self.pieces = PiecewiseGraphs(model, kv_cache, capture) if capture.max_piece_tokens else None

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Capture the graphs of decodes without drafts, and the pieces of other steps, before they are needed."""
        begin_s = time.monotonic()
        most = min(self._way.max_tokens, self._kv_cache.num_blocks // self._kv_cache.num_groups)
        rows = sorted({padded_batch_size(n + 1) for n in range(most)}, reverse=True)
        lengths = range(1, self._max_model_len + 1, MIN_GRAPH_CONTEXT)
        contexts = sorted({padded_context(length, self._max_model_len) for length in lengths}, reverse=True)
        nothing = ScheduledChunk(0, (0,), 0, (0,) * self._kv_cache.num_groups, 1)
        if self.pieces is not None:
            self.pieces.capture_all()
        for num_rows, context in itertools.product(rows, contexts):
            shape = _Shape(num_rows, 1, context)
            packed = self._pack([nothing], shape)
            packed.arrays["slots"].fill_(-1)  # no K and V are written
            self._graphs[shape] = self._try_capture(packed, shape)
        logger.info("%d graphs of decodes captured in %.1f s", len(self._graphs), time.monotonic() - begin_s)

    def run(self, chunks: Sequence[ScheduledChunk]) -> States:
        """A step's hidden states, valid until the next run; (None, None) if it must run eagerly."""
        hidden = None if self.ahead is None else self.ahead.take(chunks)
        hidden = self.replay(chunks) if hidden is None else hidden
        if hidden is None:
            return (None, None) if self.pieces is None else self.pieces.run(chunks)
        if self.ahead is not None:
            self.ahead.note(chunks)
        return hidden, hidden  # each row of a decode is sampled

    @torch.inference_mode()
    def look_ahead(self, token_ids: Int[Tensor, "D"]) -> None:
        """The tokens of the latest run are drawn, and the host does not know them yet: begin the next step."""
        if self.ahead is None:
            return
        try:
            self.ahead.begin(token_ids)
        except Exception as error:  # the step at hand is done, and must not fail
            logger.warning("No decode is begun ahead from here on: %s", error)
            self.ahead = None

    def replay(
        self, chunks: Sequence[ScheduledChunk], token_ids: Int[Tensor, "D"] | None = None
    ) -> Float[Tensor, "T N"] | None:
        """The hidden states of decodes, computed by a graph; None if they have no graph. `token_ids`, which are on the
        device, take the place of the chunks' tokens."""
        # A chunk of one token in the middle of a prompt is not a decode: it has no row to sample.
        is_decode = all(chunk.num_samples and len(chunk.token_ids) == 1 + chunk.num_drafts for chunk in chunks)
        max_query_len = max(len(chunk.token_ids) for chunk in chunks)
        num_rows, block_size = padded_batch_size(len(chunks)), self._kv_cache.spec.block_size
        if not is_decode or max_query_len > self._model.backend.max_decode_len:
            return None
        if num_rows * max_query_len > self._way.max_tokens:
            return None
        num_groups = self._kv_cache.num_groups
        longest = max(len(chunk.block_ids) for chunk in chunks) // num_groups * block_size
        shape = _Shape(num_rows, max_query_len, padded_context(longest, self._max_model_len))
        packed = self._pack(chunks, shape)
        if shape not in self._graphs:
            self._graphs[shape] = self._try_capture(packed, shape)
        captured = self._graphs[shape]
        if captured is None:
            return None
        captured.inputs.arrays.buffer.copy_(packed.arrays.buffer)
        if token_ids is not None:
            captured.inputs.arrays["token_ids"][: len(token_ids)].copy_(token_ids)
        captured.graph.replay()
        return captured.hidden[: sum(len(chunk.token_ids) for chunk in chunks)]

    def _pack(self, chunks: Sequence[ScheduledChunk], shape: _Shape) -> PackedBatch:
        """Decodes, padded to a graph's shape."""
        block_size = self._kv_cache.spec.block_size
        num_columns = -(-shape.context // (block_size * TABLE_COLUMNS)) * TABLE_COLUMNS
        return pack(
            chunks, block_size, num_groups=self._kv_cache.num_groups, num_rows=shape.num_rows,
            num_tokens=shape.num_rows * shape.max_query_len, num_columns=num_columns, device=self._kv_cache.device,
        )  # fmt: skip

    def _try_capture(self, packed: PackedBatch, shape: _Shape) -> _Graph | None:
        # The capture may write the same K and V that the replay will write: nothing needs undoing.
        inputs = replace(
            packed,
            query_lens=(shape.max_query_len,) * shape.num_rows,
            seq_lens=(shape.context,) * shape.num_rows,
        )
        try:
            self._way.warm_up(lambda: self._forward(inputs))
            with self._way.capture() as graph:
                hidden = self._forward(inputs)
        except Exception as error:
            logger.warning("A graph of %d decodes failed, so such steps run eagerly: %s", shape.num_rows, error)
            return None
        return _Graph(graph, inputs, hidden)

    def _forward(self, inputs: PackedBatch) -> Float[Tensor, "T N"]:
        return self._model.forward(inputs.arrays["token_ids"], self._model.backend.plan(inputs.view()), self._kv_cache)


def padded_batch_size(num_seqs: int) -> int:
    """The next power of two, from 16 on the next multiple of 16: at most a half, later a few rows are wasted."""
    return -(-num_seqs // 16) * 16 if num_seqs > 16 else 1 << (num_seqs - 1).bit_length()


def padded_context(num_tokens: int, max_model_len: int) -> int:
    """The context that a graph is captured for: the next of 1024, 4096, ..., at most `max_model_len`."""
    context = MIN_GRAPH_CONTEXT
    while context < num_tokens:
        context *= CONTEXT_GROWTH
    return min(context, max_model_len)
