"""Linear layers: their interface, and a plain layer with the weight in this machine's fastest layout."""

import functools
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# oneDNN chooses the layout for this many rows: as fast for 1 to 300; that for 1 row is up to twice as slow for more.
PACK_FOR_ROWS = 32


@runtime_checkable
class Linear(Protocol):
    """The door of a layer's product: x @ weight.T + bias, for any format of the weight. The `WeightLoader` makes it:
    `TorchLinear`, or a layer of few bits (twophase_features.quantization.linear)."""

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]: ...


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """x @ weight.T + bias; if `is_packed`, `weight` is an opaque tensor in oneDNN's own layout."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, "O"] | None
    is_packed: bool

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def make_linear(weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None) -> TorchLinear:
    """A linear layer; on a CPU packed for oneDNN, whose blocked layout streams at the speed of memory: F.linear on one
    row takes 1.9x the time (AVX-512, 2 cores, SmolLM2's shapes)."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return TorchLinear(torch.ops.mkldnn._reorder_linear_weight(weight, PACK_FOR_ROWS), bias, is_packed=True)
    return TorchLinear(weight, bias, is_packed=False)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch, on this CPU, multiplies `dtype` by oneDNN: tried out on a small product.

    torch.compile uses the same two operators; they are not a public API, so they may be missing.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.eye(8, dtype=dtype), torch.arange(64, dtype=dtype).view(8, 8)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_FOR_ROWS)
        product = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError):  # this CPU lacks the instructions; this build lacks the operator
        return False
    return torch.equal(product, weight.T)
