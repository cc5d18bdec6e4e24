"""Linear layers on a CPU in mode 'cpu': few rows are multiplied by our kernel, more rows by oneDNN, from one weight.

oneDNN with AVX-512 lays out a weight as `twophase_kernels.packed_linear` reads it, so the kernel reads the memory of
oneDNN's tensor and there is no second copy. Whether the layout is this one is a matter of oneDNN's version and of the
processor, so each weight's memory is compared with our own packing, bit by bit, when the model is loaded. Where they
differ, the kernel gets a copy, which is kept only for layers in which it is the faster one.

The kernel is faster up to some number of rows, which depends on the machine, the dtype and the shape. It is measured
when the model is loaded: see `measure_max_rows`.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from twophase.model.linear import Linear, TorchLinear
from twophase.model.weights import DenseMLP, LayerWeights, ModelWeights
from twophase_features.quantization.few_rows import FewRows
from twophase_features.triton.huge_pages import use_huge_pages
from twophase_kernels import mode
from twophase_kernels.packed_linear import WORD_DTYPES, launch_packed_linear, pack_weight

logger = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16)  # that are measured: the heights of the kernel's tiles
ROUNDS = 5
TOLERANCE = 1.03  # of torch's time: torch's threads spin for milliseconds after a product, on cores that kernels need
SAMPLE_BYTES = 64 * 2**20  # of weights: more than a core's caches hold, as in a decode step


def few_rows_of_torch(linear: TorchLinear, max_rows: int = 0) -> FewRows:
    """The same layer, whose words are oneDNN's own memory, or a copy. Raises ValueError for weights that are neither
    float32 nor bfloat16."""
    weight = linear.weight.to_dense() if linear.is_packed else linear.weight
    words = pack_weight(weight)
    shared = memory_of(linear.weight, words) if linear.is_packed else None
    words, shape = words if shared is None else shared, tuple(weight.shape)
    return FewRows(linear, launch_packed_linear, words, (), shape, linear.bias, weight.dtype, max_rows=max_rows)


def memory_of(packed: Float[Tensor, "O I"], words: Shaped[Tensor, "B W 64"]) -> Shaped[Tensor, "B W 64"] | None:
    """The memory of an opaque tensor of oneDNN, if it holds exactly these words; else None.

    torch's compiler asks for the memory by the same two operators when it saves a model; they are not a public API.
    """
    try:
        address, num_bytes = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    except (RuntimeError, AttributeError):
        return None
    if num_bytes != words.numel() * words.itemsize:
        return None
    buffer = (ctypes.c_char * num_bytes).from_address(address)
    buffer.owner = packed  # whose memory lives as long as a tensor over it
    found = torch.frombuffer(buffer, dtype=words.dtype).view(words.shape)
    return found if torch.equal(found.view(torch.int32), words.view(torch.int32)) else None


def with_kernels(weights: ModelWeights, max_rows: int | None = None) -> ModelWeights:
    """The weights of a model whose attention's and MLPs' layers, and head, use the kernel for few rows.

    In another mode than 'cpu', or for another dtype than float32 and bfloat16, they stay as they are; so do layers of
    few bits without a kernel, experts, and layers of a shape for which the kernel is never the faster one.

    Args:
        max_rows: For all layers; None: measured for each shape. A measured number may differ from one start to the
            next, and with it the last bits of a result.
    """
    if mode() != "cpu" or weights.embed.device.type != "cpu" or weights.dtype not in WORD_DTYPES:
        return weights
    of_kind: dict[Any, list[TorchLinear | FewRows]] = {}
    for linear in _linears(weights):
        if isinstance(linear, TorchLinear | FewRows):
            of_kind.setdefault(_kind(linear), []).append(linear)
    limits = {}
    for kind, layers in of_kind.items():
        limits[kind] = measure_max_rows(_sample(layers)) if max_rows is None else max_rows
        logger.info("Products of up to %d rows with weights %s use Triton's kernel.", limits[kind], kind)

    def with_kernel(linear: Linear) -> Linear:
        limit = limits.get(_kind(linear), 0)
        if isinstance(linear, FewRows):
            return replace(linear, max_rows=limit) if limit else linear.many
        return few_rows_of_torch(linear, limit) if isinstance(linear, TorchLinear) and limit else linear

    new = _replaced(weights, with_kernel)
    if isinstance(new.lm_head, FewRows):
        new = replace(new, lm_head=replace(new.lm_head, dtype=torch.float32))
    use_huge_pages(linear.words for linear in _linears(new) if isinstance(linear, FewRows))
    return new


def measure_max_rows(layers: Sequence[FewRows]) -> int:
    """The largest of `ROWS` up to which the kernel is faster than torch, for layers of one shape; 0: it never is.

    Both are replayed from a recording, as in a decode step (`twophase_features.step_graphs`), so that only torch's
    products are called from Python. Both take turns, and the least time of each counts. It is one thread's CPU time,
    because other processes delay torch's threads, which wait for each other, more than ours. The kernel wins where both
    are about equally fast.
    """
    best = 0
    for num_rows in ROWS:
        x = torch.randn(num_rows, layers[0].shape[1], generator=torch.Generator().manual_seed(0)).to(layers[0].x_dtype)
        few, many = ([each.few for each in layers], [each.many for each in layers])
        with torch.inference_mode(), _one_thread():
            replays = [_recorded(products, x) for products in (few, many)]
            rounds = [[_seconds(replay) for replay in replays] for _ in range(ROUNDS)]
        few_s, many_s = (min(times) for times in zip(*rounds, strict=True))
        if few_s > TOLERANCE * many_s:
            break
        best = num_rows
    return best


def _recorded(products: Sequence[Callable[[Tensor], Tensor]], x: Float[Tensor, "T I"]) -> Callable[[], None]:
    """A function that multiplies x by each layer's weight, as a decode step's graph does."""
    import triton_on_cpu

    with triton_on_cpu.record(torch_operations=True) as recording:
        for product in products:
            product(x)
    return recording.replay


def _seconds(replay: Callable[[], None]) -> float:
    """CPU time of this thread for one replay."""
    start = time.thread_time()
    replay()
    return time.thread_time() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sample(layers: Sequence[TorchLinear | FewRows]) -> list[FewRows]:
    """As many layers as have `SAMPLE_BYTES` of weights, one at least."""
    samples = (layer if isinstance(layer, FewRows) else few_rows_of_torch(layer) for layer in layers)
    first = next(samples)
    number = SAMPLE_BYTES // first.words.nbytes
    return [first, *islice(samples, max(0, number - 1))]


def _kind(linear: Linear) -> tuple[int, ...]:
    """Layers of one kind are equally fast: [O, I], and the words that hold I codes."""
    if isinstance(linear, FewRows):
        return *linear.shape, linear.words.shape[1]
    return tuple(linear.weight.shape) if isinstance(linear, TorchLinear) else ()


def _linears(weights: ModelWeights) -> list[Linear]:
    """The layers that may have a kernel."""
    found: list[Linear] = []

    def note(linear: Linear) -> Linear:
        found.append(linear)
        return linear

    _replaced(weights, note)
    return found


def _replaced(weights: ModelWeights, change: Callable[[Linear], Linear]) -> ModelWeights:
    """The weights with each layer that may have a kernel replaced by `change`."""

    def layer(old: LayerWeights) -> LayerWeights:
        mlp = old.mlp
        if isinstance(mlp, DenseMLP):
            mlp = replace(mlp, gate_up=change(mlp.gate_up), down=change(mlp.down))
        return replace(old, qkv=change(old.qkv), o=change(old.o), mlp=mlp)

    return replace(weights, layers=tuple(map(layer, weights.layers)), lm_head=change(weights.lm_head))
