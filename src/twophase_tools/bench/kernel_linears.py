"""Products with weights of fewer bits, for `twophase bench kernels`: ours, and torch's on the same numbers.

torch's own kernels for them are not public. Each wants its codes packed in its own way, before the clock starts; that
for 4 bits has scales and zeros in x's dtype, so ours get scales and minima that are exactly those numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels.fp8_linear import fp8_linear, fp8_linear_reference, quantise_tokens, quantise_tokens_reference
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import quantized_linear, quantized_linear_reference
from twophase_tools.bench.kernel_variants import OURS, REFERENCE, KernelCase, MakeVariant, Variant
from twophase_tools.bench.kernel_work import Work, fp8_linear_work, quantise_tokens_work, quantized_linear_work

DENSE = "F.linear, dense"
TOKENS_TOLERANCE = 1e-2  # a value halfway between two codes may become either
INNER_K_TILES = 8  # of torch's layout for 4 bits: the most it takes


@dataclass(frozen=True)
class Layer:
    """A product of [num_tokens, num_inputs] with a weight [num_outputs, num_inputs], whose columns share scales in
    groups where they have 4 bits."""

    num_tokens: int
    num_outputs: int
    num_inputs: int
    group: int
    dtype: torch.dtype
    device: torch.device

    def cases(self, tolerance: float) -> Iterator[KernelCase]:
        """A row for each way to store the weight, and one for the quantiser that fp8 needs."""
        sizes = self.num_tokens, self.num_inputs, self.num_outputs
        label = f"{self.num_outputs:,} x {self.num_inputs:,}, {self.num_tokens:,} tokens"
        num_scales = 2 * self.num_outputs * (self.num_inputs // self.group)
        ways: tuple[tuple[str, Work, Callable[[], dict[str, MakeVariant]]], ...] = (
            ("int4_linear", quantized_linear_work(*sizes, 4, self.dtype.itemsize, num_scales), self.int4),
            ("int8_linear", quantized_linear_work(*sizes, 8, self.dtype.itemsize, self.num_outputs), self.int8),
            ("fp8_linear", fp8_linear_work(*sizes, self.dtype.itemsize), self.fp8),
        )
        for kernel, work, make in ways:
            yield KernelCase(kernel, label, work, make, tolerance, only_reads=True)
        label = f"{self.num_tokens:,} x {self.num_inputs:,}"
        work = quantise_tokens_work(self.num_tokens, self.num_inputs, self.dtype.itemsize)
        yield KernelCase("quantise_tokens", label, work, self.tokens, TOKENS_TOLERANCE)

    def int4(self) -> dict[str, MakeVariant]:
        """torch's weight is scale * (code - 8) + zero."""
        x, num_groups = self._x(), self.num_inputs // self.group
        codes = torch.randint(0, 16, (self.num_outputs, self.num_inputs), dtype=torch.int32, device=self.device)
        scales = torch.rand(num_groups, self.num_outputs, device=self.device).to(self.dtype)
        zeros = torch.randn(num_groups, self.num_outputs, device=self.device).to(self.dtype)
        minima = zeros.float() - 8 * scales.float()

        def torch_int4() -> Variant:
            scales_and_zeros = torch.stack([scales, zeros], dim=-1)
            if self.device.type == "cpu":
                packed = torch._convert_weight_to_int4pack_for_cpu(codes, INNER_K_TILES)
                return if_taken(lambda: torch._weight_int4pack_mm_for_cpu(x, packed, self.group, scales_and_zeros))
            # Even columns are the upper half of a byte.
            pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
            packed = torch._convert_weight_to_int4pack(pairs, INNER_K_TILES)
            return if_taken(lambda: torch._weight_int4pack_mm(x, packed, self.group, scales_and_zeros))

        def weight() -> Tensor:
            scaled = codes * scales.float().T.repeat_interleave(self.group, dim=1)
            return scaled + minima.T.repeat_interleave(self.group, dim=1)

        return {
            OURS: lambda: _product(quantized_linear, x, pack_codes(codes, 4), scales.float(), minima),
            "torch int4pack": torch_int4,
            DENSE: lambda: dense_variant(x, weight()),
            REFERENCE: lambda: _compared(quantized_linear_reference, x, pack_codes(codes, 4), scales, minima),
        }

    def int8(self) -> dict[str, MakeVariant]:
        x = self._x()
        codes = torch.randint(-127, 128, (self.num_outputs, self.num_inputs), dtype=torch.int8, device=self.device)
        scales = torch.rand(self.num_outputs, device=self.device).to(self.dtype)
        return {
            OURS: lambda: _product(quantized_linear, x, pack_codes(codes, 8), scales.float()),
            "torch int8pack": lambda: if_taken(lambda: torch._weight_int8pack_mm(x, codes, scales)),
            DENSE: lambda: dense_variant(x, codes * scales.float()[:, None]),
            REFERENCE: lambda: _compared(quantized_linear_reference, x, pack_codes(codes, 8), scales),
        }

    def fp8(self) -> dict[str, MakeVariant]:
        """x is quantised before the clock starts: one quantised x serves several products."""
        x, x_scales = quantise_tokens_reference(torch.randn(self.num_tokens, self.num_inputs, device=self.device))
        drawn = torch.randn(self.num_outputs, self.num_inputs, device=self.device)
        weight, scales = quantise_tokens_reference(drawn)
        dtype, rows, columns = self.dtype, x_scales[:, None], scales[None, :]

        def scaled_mm() -> Tensor:  # its sums as exact as ours
            return torch._scaled_mm(x, weight.T, rows, columns, out_dtype=dtype, use_fast_accum=False)

        return {
            OURS: lambda: Variant(lambda: fp8_linear(x, x_scales, weight, scales, dtype=dtype)),
            "torch _scaled_mm": lambda: if_taken(scaled_mm),
            DENSE: lambda: dense_variant((x.float() * rows).to(dtype), weight.float() * scales[:, None]),
            REFERENCE: lambda: Variant(
                lambda: fp8_linear_reference(x, x_scales, weight, scales, dtype=dtype), is_timed=False
            ),
        }

    def tokens(self) -> dict[str, MakeVariant]:
        x = self._x()

        def dequantised(found: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            codes, scales = found
            return (codes.float() * scales[:, None],)

        return {
            OURS: lambda: Variant(lambda: quantise_tokens(x), dequantised),
            "torch eager": lambda: Variant(lambda: quantise_tokens_reference(x), dequantised),
        }

    def _x(self) -> Tensor:
        return torch.randn(self.num_tokens, self.num_inputs, dtype=self.dtype, device=self.device)


def _product(linear: Callable[..., Tensor], *inputs: Tensor) -> Variant:
    return Variant(lambda: linear(*inputs))


def _compared(linear: Callable[..., Tensor], *inputs: Tensor) -> Variant:
    return Variant(lambda: linear(*inputs), is_timed=False)


def if_taken(call: Callable[[], Tensor]) -> Variant:
    """What is not public may not take these inputs on this machine; that is no failure of the benchmark.

    Raises:
        NotImplementedError: It does not; with what it said.
    """
    try:
        call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotImplementedError(str(error)) from error
    return Variant(call)


def dense_variant(x: Tensor, weight: Tensor) -> Variant:
    """What the layer would cost had it not been quantised: the same numbers, rounded to x's dtype."""
    w = weight.to(x.dtype)
    return Variant(lambda: F.linear(x, w))
