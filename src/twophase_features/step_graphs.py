"""Decode steps as graphs: one call for a whole forward pass, where Python would launch hundreds of kernels.

A graph is captured in one of two ways, and repeats its work on the same memory: a CUDA graph, or, for kernels that are
compiled for the CPU, a recorded list of launches that C goes through. An engine's CUDA graphs are captured before its
first request (start_up.py), the largest first: smaller ones use the same memory. Other graphs are captured when first
needed. Steps with prompts run in pieces (piecewise_graphs.py).

A graph has fixed shapes and addresses. So decodes are padded to a few batch sizes, contexts are rounded up for the
host-side choices (how many splits) and for the width of block tables, and each graph reads its inputs from buffers of
its own, filled before a replay.

Decodes that verify drafts have graphs too, one for each number of drafts. Sequences may have fewer drafts or none: the
graph has room for the most drafts of any sequence. The batch stays ragged, with its cumulative lengths as an input, and
the unused tokens are at its end.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import TABLE_COLUMNS, PackedBatch, pack
from twophase.memory import GIB, free_memory_bytes
from twophase.model.llama import LlamaModel
from twophase.scheduling.scheduler import Scheduler
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
    """CUDA graphs of one device, which share their memory: at most one is replayed at a time.

    Attributes:
        kept_bytes: Free memory that steps without graphs need: with less of it, no graph is captured.
    """

    max_tokens = 256  # larger batches compute long enough to hide their launches
    max_piece_tokens = 512
    num_warmups = 2
    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        self.kept_bytes = 0
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
        """Captures the launches within it; `replay()` of the value that it yields repeats them. Raises MemoryError."""
        torch.cuda.empty_cache()  # what PyTorch keeps for its next tensors is free, too
        free_bytes = free_memory_bytes(self._device)
        if free_bytes < self.kept_bytes:
            raise MemoryError(f"{free_bytes / GIB:.2f} GiB are free, and steps need {self.kept_bytes / GIB:.2f} GiB.")
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
    kept_bytes = 0  # as `CudaGraphs.kept_bytes`; a CPU's memory is not watched

    def warm_up(self, forward: Callable[[], Any]) -> None:
        """Nothing to do."""

    @contextmanager
    def capture(self) -> Iterator[Any]:
        import triton_on_cpu

        with triton_on_cpu.record(torch_operations=True) as recording:
            yield recording


Capture = CudaGraphs | RecordedLaunches


def why_eager(model: LlamaModel) -> str:
    """Why a model's steps cannot be captured; empty if they can."""
    if not all(layer.mlp.can_be_captured for layer in model.weights.layers):
        return "the host assigns rows to experts"
    return "" if mode() in ("cuda", "cpu") else f"kernels are {mode()}"


def decode_graphs(model: LlamaModel, kv_cache: KVCache, max_model_len: int) -> "DecodeGraphs | None":
    """Graphs for a model's decode steps; None, and a line in the log, if they cannot be captured."""
    if why_not := why_eager(model):
        logger.info("%s: decodes run eagerly", why_not)
        return None
    if mode() == "cuda":
        return DecodeGraphs(model, kv_cache, max_model_len, CudaGraphs(kv_cache.device))
    begin_in_huge_pages(kv_cache.storage)
    return DecodeGraphs(model, kv_cache, max_model_len, RecordedLaunches())


@final
class DecodeGraphs:
    """Graphs of one model over one cache, captured by `capture_all` or when first needed.

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
    def capture_all(self, scheduler: Scheduler, kept_bytes: int) -> None:
        """Capture what the scheduler's steps need: decodes without drafts, of as many sequences and as long ones as
        there can be, and the pieces of steps with prompts. `kept_bytes` of free memory are left."""
        begin_s, self._way.kept_bytes = time.monotonic(), kept_bytes
        limits, cache, num_groups = scheduler.config, scheduler.cache, self._kv_cache.num_groups
        lengths = range(1, self._max_model_len + 1, MIN_GRAPH_CONTEXT)
        num_seqs = min(self._way.max_tokens, limits.max_num_seqs, self._kv_cache.num_blocks // num_groups)
        fitting = [length for length in lengths if cache.num_blocks_at_most(length) <= cache.num_blocks]
        nothing = ScheduledChunk(0, (0,), 0, (0,) * num_groups, 1)
        if self.pieces is not None:
            self.pieces.capture_all(limits.max_num_batched_tokens)
        for shape in shapes_of(num_seqs, fitting, self._max_model_len):
            packed = self._pack([nothing], shape)
            packed.arrays["slots"].fill_(-1)  # no K and V are written
            self._graphs[shape] = self._try_capture(packed, shape)
        logger.info("%d graphs of decodes captured in %.1f s", len(self._graphs), time.monotonic() - begin_s)

    def run(self, chunks: Sequence[ScheduledChunk], is_watched: bool = False) -> States:
        """A step's hidden states, valid until the next run; (None, None) if it must run eagerly, as a watched step."""
        hidden = None if self.ahead is None else self.ahead.take(() if is_watched else chunks)
        if is_watched:
            return None, None
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

    @torch.inference_mode()
    def run_prompt(self, num_tokens: int) -> Float[Tensor, "T N"]:
        """The hidden states of a step with a prompt, which runs eagerly and writes no K and V."""
        cache = self._kv_cache
        block_ids = (0,) * -(-num_tokens // cache.spec.block_size) * cache.num_groups
        chunk = ScheduledChunk(0, (0,) * num_tokens, 0, block_ids, 1)
        packed = pack([chunk], cache.spec.block_size, num_groups=cache.num_groups, device=cache.device)
        packed.arrays["slots"].fill_(-1)
        return self._forward(packed)

    def _forward(self, inputs: PackedBatch) -> Float[Tensor, "T N"]:
        return self._model.forward(inputs.arrays["token_ids"], self._model.backend.plan(inputs.view()), self._kv_cache)


def shapes_of(num_seqs: int, lengths: Iterable[int], max_model_len: int) -> list[_Shape]:
    """Graphs for up to `num_seqs` decodes without drafts, in contexts of these lengths; the largest first."""
    rows = {padded_batch_size(n + 1) for n in range(num_seqs)}
    contexts = {padded_context(length, max_model_len) for length in lengths}
    return sorted((_Shape(n, 1, context) for n in rows for context in contexts), reverse=True)


def padded_batch_size(num_seqs: int) -> int:
    """The next power of two, from 16 on the next multiple of 16: at most a half, later a few rows are wasted."""
    return -(-num_seqs // 16) * 16 if num_seqs > 16 else 1 << (num_seqs - 1).bit_length()


def padded_context(num_tokens: int, max_model_len: int) -> int:
    """The context that a graph is captured for: the next of 1024, 4096, ..., at most `max_model_len`."""
    context = MIN_GRAPH_CONTEXT
    while context < num_tokens:
        context *= CONTEXT_GROWTH
    return min(context, max_model_len)
