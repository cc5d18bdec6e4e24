"""Products with weights of fewer bits, for `twophase bench kernels`: ours, and torch's on the same numbers.

torch's own kernels for them are not public. Each wants its codes packed in its own way, before the clock starts; that
for 4 bits has scales and zeros in x's dtype, so ours get scales and minima that are exactly those numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels.fp8_linear import fp8_linear, quantise_tokens, quantise_tokens_reference
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import quantized_linear
from twophase_tools.bench.kernel_variants import OURS, KernelCase, MakeVariant, Variant, Work

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
        num_tokens, num_inputs, num_outputs = self.num_tokens, self.num_inputs, self.num_outputs
        label, itemsize = f"{num_outputs:,} x {num_inputs:,}, {num_tokens:,} tokens", self.dtype.itemsize
        num_codes, num_flops = num_outputs * num_inputs, 2 * num_tokens * num_inputs * num_outputs
        # Each code once, fp32 scales and, of 4 bits, minima; x in and y out once.
        x_bytes, y_bytes = num_tokens * num_inputs * itemsize, num_tokens * num_outputs * itemsize
        int4_bytes = num_codes // 2 + 2 * 4 * (num_codes // self.group) + x_bytes + y_bytes
        int8_bytes = num_codes + 4 * num_outputs + x_bytes + y_bytes
        # Quantising x is work of its own: a byte for each number, and a scale per token.
        codes_bytes = num_tokens * (num_inputs + 4)
        fp8_bytes = codes_bytes + num_codes + 4 * num_outputs + y_bytes
        ways = ("int4_linear", int4_bytes, self.int4), ("int8_linear", int8_bytes, self.int8)
        for kernel, num_bytes, make in (*ways, ("fp8_linear", fp8_bytes, self.fp8)):
            yield KernelCase(kernel, label, Work(num_bytes, num_flops), make, tolerance, only_reads=True)
        # A comparison and a product per number.
        work = Work(x_bytes + codes_bytes, 2 * num_tokens * num_inputs)
        label = f"{num_tokens:,} x {num_inputs:,}"
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
                return Variant(lambda: torch._weight_int4pack_mm_for_cpu(x, packed, self.group, scales_and_zeros))
            # Even columns are the upper half of a byte.
            pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
            packed = torch._convert_weight_to_int4pack(pairs, INNER_K_TILES)
            return Variant(lambda: torch._weight_int4pack_mm(x, packed, self.group, scales_and_zeros))

        def dense() -> Variant:
            scaled = codes * scales.float().T.repeat_interleave(self.group, dim=1)
            return self._dense(x, scaled + minima.T.repeat_interleave(self.group, dim=1))

        return {
            OURS: lambda: self._ours(x, codes, 4, scales.float(), minima),
            "torch int4pack": torch_int4,
            DENSE: dense,
        }

    def int8(self) -> dict[str, MakeVariant]:
        x = self._x()
        codes = torch.randint(-127, 128, (self.num_outputs, self.num_inputs), dtype=torch.int8, device=self.device)
        scales = torch.rand(self.num_outputs, device=self.device).to(self.dtype)
        return {
            OURS: lambda: self._ours(x, codes, 8, scales.float()),
            "torch int8pack": lambda: Variant(lambda: torch._weight_int8pack_mm(x, codes, scales)),
            DENSE: lambda: self._dense(x, codes * scales.float()[:, None]),
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
            "torch _scaled_mm": lambda: Variant(scaled_mm),
            DENSE: lambda: self._dense((x.float() * rows).to(dtype), weight.float() * scales[:, None]),
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

    def _ours(self, x: Tensor, codes: Tensor, bits: int, *scales: Tensor) -> Variant:
        packed = pack_codes(codes, bits)
        return Variant(lambda: quantized_linear(x, packed, *scales))

    def _dense(self, x: Tensor, weight: Tensor) -> Variant:
        """What the layer would cost had it not been quantised: the same numbers, rounded to x's dtype."""
        w = weight.to(x.dtype)
        return Variant(lambda: F.linear(x, w))
