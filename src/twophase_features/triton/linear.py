"""Linear layers on a CPU in mode 'cpu': few rows are multiplied by our kernel, more rows by oneDNN, from one weight.

oneDNN with AVX-512 lays out a weight as `twophase_kernels.packed_linear` reads it, so the kernel reads the memory of
oneDNN's tensor and there is no second copy. Whether the layout is this one is a matter of oneDNN's version and of the
processor, so each weight's memory is compared with our own packing, bit by bit, when the model is loaded. Where they
differ, the kernel gets a copy.

Up to `MAX_ROWS` rows, as many as the largest step that is recorded has, all products are the kernel's. oneDNN's may be
as fast alone, but its threads spin while they wait, on the cores that our kernels need meanwhile. A step of 8 sequences
that gave a part of its products to oneDNN took 40 ms, and 28 without (SmolLM2 in bfloat16, two cores).
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from twophase.model.linear import Linear, TorchLinear
from twophase.model.weights import DenseMLP, LayerWeights, ModelWeights
from twophase_features.quantization.few_rows import FewRows
from twophase_features.triton.huge_pages import use_huge_pages
from twophase_kernels import mode
from twophase_kernels.packed_linear import WORD_DTYPES, pack_weight

MAX_ROWS = 32


def few_rows_of_torch(linear: TorchLinear, max_rows: int = MAX_ROWS) -> FewRows:
    """The same layer, whose words are oneDNN's own memory, or a copy. Raises ValueError for weights that are neither
    float32 nor bfloat16."""
    weight = linear.weight.to_dense() if linear.is_packed else linear.weight
    words = pack_weight(weight)
    shared = memory_of(linear.weight, words) if linear.is_packed else None
    words, shape = words if shared is None else shared, tuple(weight.shape)
    return FewRows(linear, words, None, None, shape, linear.bias, weight.dtype, max_rows=max_rows)


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


def with_kernels(weights: ModelWeights, max_rows: int = MAX_ROWS) -> ModelWeights:
    """The weights of a model whose attention's and MLPs' layers, and head, use the kernel for up to `max_rows` rows.

    In another mode than 'cpu', or for another dtype than float32 and bfloat16, they stay as they are; so do layers of
    few bits without a kernel, and experts.
    """
    if mode() != "cpu" or weights.embed.device.type != "cpu" or weights.dtype not in WORD_DTYPES:
        return weights

    words: list[Tensor] = []

    def with_kernel(linear: Linear) -> Linear:
        if isinstance(linear, TorchLinear):
            linear = few_rows_of_torch(linear, max_rows)
        elif isinstance(linear, FewRows):
            linear = replace(linear, max_rows=max_rows)
        if isinstance(linear, FewRows):
            words.append(linear.words)
        return linear

    new = _replaced(weights, with_kernel)
    if isinstance(new.lm_head, FewRows):
        new = replace(new, lm_head=replace(new.lm_head, dtype=torch.float32))
    use_huge_pages(words)
    return new


def _replaced(weights: ModelWeights, change: Callable[[Linear], Linear]) -> ModelWeights:
    """The weights with each layer that may have a kernel replaced by `change`."""

    def layer(old: LayerWeights) -> LayerWeights:
        mlp = old.mlp
        if isinstance(mlp, DenseMLP):
            mlp = replace(mlp, gate_up=change(mlp.gate_up), down=change(mlp.down))
        return replace(old, qkv=change(old.qkv), o=change(old.o), mlp=mlp)

    return replace(weights, layers=tuple(map(layer, weights.layers)), lm_head=change(weights.lm_head))
