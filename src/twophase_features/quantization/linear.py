"""Linear layers that multiply by weights of few bits.

On a CPU, by torch's operators. Measured on 2 cores of an AMD EPYC (AVX-512, no AMX), SmolLM2's shapes, one thread:

- 4 bits in groups, bf16 activations: `_weight_int4pack_mm_for_cpu` reads a quarter of bf16's bytes, and its time grows
  with the rows; beyond 4 rows packed bf16 is faster. So up to 4 rows use the former, more rows the latter.
- int8 activations: `_int_mm` sums exactly, in int32. Against packed bf16 it takes 0.4 to 0.8 times as long at 1 row and
  0.5 to 0.8 times from 32 rows on; in between it may be slower.
- All else, and float32: the weights are dequantised when the model is loaded. The values equal the codes' values, and
  no memory is saved.

On a GPU the Triton kernels multiply (`kernel_linear`). Weights without a kernel stay in few bits, and each call
dequantises them.
"""

import functools
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

from twophase.model.linear import Linear, TorchLinear, can_pack, make_linear
from twophase_features.quantization.few_rows import few_rows_of_codes, has_few_rows_kernel
from twophase_features.quantization.kernel_linear import KernelLinear, kernel_for
from twophase_features.quantization.weight import QuantizedWeight, pack_nibbles, unpack_nibbles
from twophase_features.triton.available import runs_triton

INT4_GROUPS = (32, 64, 128, 256)  # group sizes of torch's operator
INT4_OUTPUTS = 16  # whose multiple it wants
FEW_ROWS = 4  # up to this number of rows it is faster than oneDNN with bf16
INT8_MAX = 127


def make_quantized_linear(
    weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, dtype: torch.dtype, keeps_plain: bool = True
) -> Linear:
    """The fastest layer for this weight on its device, for activations of `dtype`.

    Args:
        keeps_plain: Whether there is memory for a bf16 copy of the weight, for steps of many rows.
    """
    if weight.codes.device.type != "cpu":
        has_kernel = kernel_for(weight) is not None and runs_triton(weight.codes.device, dtype)
        return KernelLinear.from_weight(weight, bias) if has_kernel else PackedLinear.from_weight(weight, bias)
    if has_few_rows_kernel(weight, dtype):
        return few_rows_of_codes(weight, bias, dtype, _make_torch_linear(weight, bias, dtype, keeps_plain))
    return _make_torch_linear(weight, bias, dtype, keeps_plain)


def _make_torch_linear(
    weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, dtype: torch.dtype, keeps_plain: bool
) -> Linear:
    """The fastest layer on a CPU by torch's operators."""
    if weight.activations == "int8":
        return DynamicInt8Linear(weight.codes.contiguous(), weight.scales[:, 0], bias)
    if dtype == torch.bfloat16 and suits_int4_operator(weight.bits, weight.group_size, weight.shape[0]):
        return Int4Linear.from_weight(weight, bias, keeps_plain)
    return make_plain_linear(weight, bias, dtype)


def make_plain_linear(weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, dtype: torch.dtype) -> Linear:
    """The weight in floating point, on a CPU: in `dtype`, or in float32 where this CPU does not multiply that."""
    if can_pack(dtype):
        return make_linear(weight.dequantize(dtype), bias)
    return Float32Linear(make_linear(weight.dequantize(), None if bias is None else bias.float()))


@dataclass(frozen=True, slots=True)
class Int4Linear:
    """4-bit weights in groups on a CPU, bf16 activations.

    Attributes:
        packed: Two codes in a byte, in the order of this CPU's instructions; opaque.
        scales_and_middles: bf16 [I / G, O, 2]: of each group the scale, and the value of code 8.
        bias: bf16 [O], or None.
        input_order: Which input each column belongs to; None: they are in order.
        plain: The same weight for more than `FEW_ROWS` rows; None: there is no memory for it.
    """

    packed: UInt8[Tensor, "..."]
    scales_and_middles: Float[Tensor, "G O 2"]
    group_size: int
    bias: Float[Tensor, "O"] | None
    input_order: Int[Tensor, "I"] | None
    plain: Linear | None

    @classmethod
    def from_weight(cls, weight: QuantizedWeight, bias: Float[Tensor, "O"] | None, keeps_plain: bool) -> "Int4Linear":
        if weight.minima is None:
            codes, middles = weight.codes + 8, torch.zeros_like(weight.scales)
        else:
            codes, middles = weight.codes, weight.minima + 8 * weight.scales
        return cls(
            torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1),
            torch.stack((weight.scales.t(), middles.t()), dim=-1).bfloat16().contiguous(),
            weight.group_size,
            bias,
            weight.input_order,
            make_plain_linear(weight, bias, torch.bfloat16) if keeps_plain else None,
        )

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        if self.plain is not None and x.shape[0] > FEW_ROWS:
            return self.plain(x)
        if self.input_order is not None:
            x = x.index_select(1, self.input_order)
        product = torch._weight_int4pack_mm_for_cpu(x, self.packed, self.group_size, self.scales_and_middles)
        return product if self.bias is None else product.add_(self.bias)


@dataclass(frozen=True, slots=True)
class DynamicInt8Linear:
    """int8 weights, a scale per output, and activations rounded to int8, a scale per token: sums of whole numbers are
    exact, so a token's result does not depend on the rows beside it. With tensor parallelism each rank rounds its part
    of a token's inputs with its own scale, so results differ slightly from one process's.

    Attributes:
        codes: int8 [O, I].
        scales: float32 [O].
    """

    codes: Int8[Tensor, "O I"]
    scales: Float[Tensor, "O"]
    bias: Float[Tensor, "O"] | None

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        codes, scales = to_int8_rows(x)
        product = torch._int_mm(codes, self.codes.t()) * (scales * self.scales)
        return (product if self.bias is None else product.add_(self.bias)).to(x.dtype)


def to_int8_rows(x: Float[Tensor, "T I"]) -> tuple[Int8[Tensor, "T I"], Float[Tensor, "T 1"]]:
    """Each row rounded to int8 with a scale of its own, in float32: its largest magnitude is 127."""
    rows = x.float()
    scales = rows.abs().amax(dim=1, keepdim=True).div_(INT8_MAX).clamp_(min=torch.finfo(torch.float32).tiny)
    return (rows / scales).round_().to(torch.int8), scales


@dataclass(frozen=True, slots=True)
class Float32Linear:
    """A float32 layer for narrower activations, which this CPU multiplies too slowly."""

    layer: TorchLinear

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        return self.layer(x.float()).to(x.dtype)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight stored in few bits, two 4-bit codes in a byte, and dequantised in each call.

    Attributes:
        stored: With the codes packed where `is_packed`.
    """

    stored: QuantizedWeight
    bias: Float[Tensor, "O"] | None
    is_packed: bool

    @classmethod
    def from_weight(cls, weight: QuantizedWeight, bias: Float[Tensor, "O"] | None) -> "PackedLinear":
        is_packed = weight.bits == 4 and weight.shape[1] % 2 == 0
        return cls(replace(weight, codes=pack_nibbles(weight.codes)) if is_packed else weight, bias, is_packed)

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        weight = self.stored
        if self.is_packed:
            weight = replace(weight, codes=unpack_nibbles(weight.codes, is_signed=weight.minima is None))
        return F.linear(x, weight.dequantize(x.dtype), self.bias)


@dataclass(frozen=True, slots=True)
class ConcatLinear:
    """Linear layers of the same input with different kinds of weights; concatenates their outputs."""

    layers: tuple[Linear, ...]

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        return torch.cat([layer(x) for layer in self.layers], dim=-1)


def suits_int4_operator(bits: int, group_size: int, num_outputs: int) -> bool:
    is_fit = bits == 4 and group_size in INT4_GROUPS and num_outputs % INT4_OUTPUTS == 0
    return is_fit and _has_int4_operator()


@functools.cache
def _has_int4_operator() -> bool:
    """Whether this build of torch multiplies 4-bit weights on this CPU: tried out on a small product, because the
    operator is not a public API."""
    codes = torch.arange(16 * 32, dtype=torch.int32).view(16, 32) % 16
    x = torch.eye(32, dtype=torch.bfloat16)[:1]
    scales_and_middles = torch.tensor([1.0, 8.0], dtype=torch.bfloat16).expand(1, 16, 2).contiguous()
    try:
        packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        product = torch._weight_int4pack_mm_for_cpu(x, packed, 32, scales_and_middles)
    except (RuntimeError, AttributeError):
        return False
    return torch.equal(product[0].int(), codes[:, 0])
