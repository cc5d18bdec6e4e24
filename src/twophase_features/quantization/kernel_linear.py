"""Linear layers that multiply by weights of few bits with Triton's kernels: on a GPU, or interpreted, for tests.

The weights stay in few bits, and are never written out: see `twophase_kernels.quantized_linear` and `fp8_linear`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from twophase_features.quantization.weight import QuantizedWeight
from twophase_kernels.fp8_linear import fp8_linear, quantise_tokens
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import quantized_linear

Kernel = Literal["int4", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class KernelLinear:
    """A weight in the layout that a kernel reads.

    Attributes:
        kernel: The kernel's name.
        codes: Packed for it: int16 [runs, O, 32]; of 'fp8', e4m3 [O, I].
        scales: [I / G, O], or [O] where each output has one.
        minima: Like scales; None: all zero.
        bias: [O], or None.
        input_order: Which input each column belongs to; None: they are in order.
    """

    kernel: Kernel
    codes: Shaped[Tensor, "..."]
    scales: Float[Tensor, "..."]
    minima: Float[Tensor, "..."] | None
    bias: Float[Tensor, "O"] | None
    input_order: Int[Tensor, "I"] | None

    @classmethod
    def from_weight(cls, weight: QuantizedWeight, bias: Float[Tensor, "O"] | None) -> "KernelLinear":
        """Raises ValueError for a weight without a kernel."""
        kernel = kernel_for(weight)
        if kernel is None:
            raise ValueError(f"no kernel multiplies {weight.bits}-bit weights in groups of {weight.group_size}.")
        codes = weight.codes.contiguous() if kernel == "fp8" else pack_codes(weight.codes, weight.bits)
        minima = None if weight.minima is None else weight.minima.t().contiguous()
        scales = weight.scales.t() if kernel == "int4" else weight.scales[:, 0]
        return cls(kernel, codes, scales.contiguous(), minima, bias, weight.input_order)

    def __call__(self, x: Float[Tensor, "T I"]) -> Float[Tensor, "T O"]:
        if self.input_order is not None:
            x = x.index_select(1, self.input_order)
        if self.kernel == "fp8":
            codes, x_scales = quantise_tokens(x)
            return fp8_linear(codes, x_scales, self.codes, self.scales, dtype=x.dtype, bias=self.bias)
        return quantized_linear(x, self.codes, self.scales, self.minima, bias=self.bias)


def kernel_for(weight: QuantizedWeight) -> Kernel | None:
    """The kernel that multiplies this weight. None for GGUF blocks of more than 4 bits, for 8 bits in groups or with
    zero points, and for int8 activations."""
    num_inputs, is_per_output = weight.shape[1], weight.scales.shape[1] == 1
    if weight.codes.dtype == torch.float8_e4m3fn:
        return "fp8" if is_per_output and num_inputs % 16 == 0 else None
    if weight.activations is not None:
        return None
    if weight.bits == 4 and weight.group_size in (32, 64, 128):
        return "int4"
    return "int8" if weight.bits == 8 and is_per_output and weight.minima is None else None
