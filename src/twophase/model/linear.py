"""A linear layer whose weight lies in memory the way this machine multiplies fastest."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from twophase.memory import ROW_ALIGNMENT_BYTES

# oneDNN chooses the layout for a batch of this many rows. Measured for 1 to 300 rows: layouts chosen for 32 or 512 are
# equally fast for all of them, the one chosen for 1 row is up to twice as slow beyond it.
PACK_FOR_ROWS = 32


@runtime_checkable
class LinearLayer(Protocol):
    """x @ weight.T + bias, whatever the weight is stored as: plain (`Linear`), or in few bits
    (twophase_features.quantization.linear)."""

    @property
    def num_outputs(self) -> int:
        """O."""

    @property
    def num_bytes(self) -> int:
        """What the weight takes in memory, in every form in which it is kept; biases are not counted."""

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias.

    Attributes:
        weight: [O, I]; an opaque tensor in oneDNN's own layout if `is_packed`.
        bias: [O], or None.
    """

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, "O"] | None
    is_packed: bool

    @property
    def num_outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def num_bytes(self) -> int:
        return self.weight.numel() * self.weight.dtype.itemsize  # packed, a tensor does not tell its bytes

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def make_linear(weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None) -> Linear:
    """A linear layer, packed for oneDNN on a CPU that it serves.

    Why: a decode step streams every weight once, and oneDNN's blocked layout streams at the speed of memory where
    F.linear on rows does not. Measured on 2 cores of an AMD EPYC (AVX-512), SmolLM2's shapes, F.linear against packed:
    fp32 1.9x at 1 row and 2.4x at 32 (MKL uses AVX2 there), bf16 1.9x at 1 row and 1.3x at 32.
    """
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return Linear(torch.ops.mkldnn._reorder_linear_weight(weight, PACK_FOR_ROWS), bias, is_packed=True)
    return Linear(weight, bias, is_packed=False)


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """Several linear layers of one shape without biases, each for rows of its own.

    Attributes:
        layers: One each; views of `stacked` where there is that.
        stacked: [E, O, I], where one launch multiplies them all, and the host need not know which rows are whose.
    """

    layers: tuple[LinearLayer, ...]
    stacked: Float[Tensor, "E O I"] | None

    @property
    def num_bytes(self) -> int:
        """Of all layers' weights."""
        return sum(layer.num_bytes for layer in self.layers)

    def __call__(self, x: Float[Tensor, "P I"], counts: Int[Tensor, "E"]) -> Float[Tensor, "P O"]:
        """The first `counts[0]` rows through the first layer, and so on. A layer without rows costs nothing."""
        if self.stacked is not None:
            return F.grouped_mm(x, self.stacked.transpose(1, 2), offs=counts.cumsum(0, dtype=torch.int32))
        parts = x.split(counts.tolist())
        products = [layer(part) for layer, part in zip(self.layers, parts, strict=True) if len(part)]
        return torch.cat(products) if products else x.new_empty(0, self.layers[0].num_outputs)


def make_grouped_linear(
    num_layers: int,
    shape: tuple[int, int],
    fill: Callable[[int, Tensor], object],
    dtype: torch.dtype,
    device: torch.device,
) -> GroupedLinear:
    """`num_layers` linear layers of weights [O, I]; `fill(number, weight)` writes each, while the others are not there
    in a second copy.

    On a CPU each is packed like any other, and multiplied by itself.
    """
    if _can_group(dtype, device, shape):
        stacked = torch.empty(num_layers, *shape, dtype=dtype, device=device)
        for number, weight in enumerate(stacked):
            fill(number, weight)
        return GroupedLinear(tuple(Linear(weight, None, is_packed=False) for weight in stacked), stacked)
    layers = []
    for number in range(num_layers):
        weight = torch.empty(shape, dtype=dtype, device=device)
        fill(number, weight)
        layers.append(make_linear(weight))
    return GroupedLinear(tuple(layers), None)


def _can_group(dtype: torch.dtype, device: torch.device, shape: tuple[int, int]) -> bool:
    """Whether this GPU multiplies groups of rows in one launch: F.grouped_mm takes bfloat16 on compute capability 8.0
    and later (its documentation, torch 2.13), in rows that start at multiples of 16 bytes. Not run on a GPU yet."""
    if device.type != "cuda" or dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    is_aligned = all(size * dtype.itemsize % ROW_ALIGNMENT_BYTES == 0 for size in shape)
    return is_aligned and torch.cuda.get_device_capability(device) >= (8, 0)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch, on this CPU, multiplies `dtype` by oneDNN: tried out on a small product.

    The two operators are those torch.compile uses; they are no public API, so their absence must not hurt.
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
