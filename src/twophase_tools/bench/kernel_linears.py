"""Products with weights of fewer bits, for `twophase bench kernels`: ours, and torch's on the same numbers.

torch's own kernels for them are not public. Each wants its codes packed in its own way, before the clock starts; that
for 4 bits has scales and zeros in x's dtype, so ours get scales and minima that are exactly those numbers.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels.fp8_linear import fp8_linear, fp8_linear_reference, quantise_tokens, quantise_tokens_reference
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import (
    quantized_linear,
    quantized_linear_reference,
)
from twophase_tools.bench.kernel_variants import OURS, REFERENCE, KernelCase, MakeVariant, Variant
from twophase_tools.kernels.work import Work, fp8_linear_work, quantise_tokens_work, quantized_linear_work

DENSE = "F.linear, dense"
TOKENS_TOLERANCE = 1e-2  # a value halfway between two codes may become either
INNER_K_TILES = 8  # of torch's layout for 4 bits: the most it takes


def linear_cases(
    num_tokens: int,
    num_outputs: int,
    num_inputs: int,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
    tolerance: float,
) -> Iterator[KernelCase]:
    """A row for each way to store a weight [O, I], and one for the quantiser that fp8 needs."""
    shape = num_tokens, num_inputs, num_outputs
    label = f"{num_outputs:,} x {num_inputs:,}, {num_tokens:,} tokens"

    def case(kernel: str, work: Work, make: Callable[[], dict[str, MakeVariant]]) -> KernelCase:
        return KernelCase(kernel, label, work, make, tolerance, only_reads=True)

    num_scales = 2 * num_outputs * (num_inputs // group)
    int4_work = quantized_linear_work(*shape, 4, dtype.itemsize, num_scales)
    int8_work = quantized_linear_work(*shape, 8, dtype.itemsize, num_outputs)
    yield case("int4_linear", int4_work, lambda: int4_variants(*shape, group, dtype, device))
    yield case("int8_linear", int8_work, lambda: int8_variants(*shape, dtype, device))
    yield case("fp8_linear", fp8_linear_work(*shape, dtype.itemsize), lambda: fp8_variants(*shape, dtype, device))
    tokens_work = quantise_tokens_work(num_tokens, num_inputs, dtype.itemsize)
    tokens_label = f"{num_tokens:,} x {num_inputs:,}"

    def make_tokens() -> dict[str, MakeVariant]:
        return tokens_variants(num_tokens, num_inputs, dtype, device)

    yield KernelCase("quantise_tokens", tokens_label, tokens_work, make_tokens, TOKENS_TOLERANCE)


def int4_variants(
    num_tokens: int, num_inputs: int, num_outputs: int, group: int, dtype: torch.dtype, device: torch.device
) -> dict[str, MakeVariant]:
    """torch's weight is scale * (code - 8) + zero."""
    x = torch.randn(num_tokens, num_inputs, dtype=dtype, device=device)
    codes = torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.int32, device=device)
    scales = torch.rand(num_inputs // group, num_outputs, device=device).to(dtype)
    zeros = torch.randn(num_inputs // group, num_outputs, device=device).to(dtype)
    minima = zeros.float() - 8 * scales.float()

    def ours() -> Variant:
        packed, fp32_scales = pack_codes(codes, 4), scales.float()
        return Variant(lambda: quantized_linear(x, packed, fp32_scales, minima))

    def reference() -> Variant:
        packed = pack_codes(codes, 4)
        return Variant(lambda: quantized_linear_reference(x, packed, scales, minima), is_timed=False)

    def torch_int4() -> Variant:
        scales_and_zeros = torch.stack([scales, zeros], dim=-1)
        if device.type == "cpu":
            packed = torch._convert_weight_to_int4pack_for_cpu(codes, INNER_K_TILES)
            return if_taken(lambda: torch._weight_int4pack_mm_for_cpu(x, packed, group, scales_and_zeros))
        # Even columns are the upper half of a byte.
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        packed = torch._convert_weight_to_int4pack(pairs, INNER_K_TILES)
        return if_taken(lambda: torch._weight_int4pack_mm(x, packed, group, scales_and_zeros))

    def dense() -> Variant:
        w = codes * scales.float().T.repeat_interleave(group, dim=1)
        return dense_variant(x, w + minima.T.repeat_interleave(group, dim=1))

    return {OURS: ours, "torch int4pack": torch_int4, DENSE: dense, REFERENCE: reference}


def int8_variants(
    num_tokens: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device
) -> dict[str, MakeVariant]:
    x = torch.randn(num_tokens, num_inputs, dtype=dtype, device=device)
    codes = torch.randint(-127, 128, (num_outputs, num_inputs), dtype=torch.int8, device=device)
    scales = torch.rand(num_outputs, device=device).to(dtype)

    def ours() -> Variant:
        packed, fp32_scales = pack_codes(codes, 8), scales.float()
        return Variant(lambda: quantized_linear(x, packed, fp32_scales))

    def reference() -> Variant:
        packed = pack_codes(codes, 8)
        return Variant(lambda: quantized_linear_reference(x, packed, scales), is_timed=False)

    return {
        OURS: ours,
        "torch int8pack": lambda: if_taken(lambda: torch._weight_int8pack_mm(x, codes, scales)),
        DENSE: lambda: dense_variant(x, codes * scales.float()[:, None]),
        REFERENCE: reference,
    }


def fp8_variants(
    num_tokens: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device
) -> dict[str, MakeVariant]:
    """x is quantised before the clock starts: one quantised x serves several products."""
    x, x_scales = quantise_tokens_reference(torch.randn(num_tokens, num_inputs, device=device))
    weight, scales = quantise_tokens_reference(torch.randn(num_outputs, num_inputs, device=device))

    def scaled_mm() -> Variant:
        rows, columns = x_scales[:, None], scales[None, :]

        def call() -> Tensor:  # its sums as exact as ours
            return torch._scaled_mm(x, weight.T, rows, columns, out_dtype=dtype, use_fast_accum=False)

        return if_taken(call)

    def dense() -> Variant:
        return dense_variant((x.float() * x_scales[:, None]).to(dtype), weight.float() * scales[:, None])

    def reference() -> Variant:
        return Variant(lambda: fp8_linear_reference(x, x_scales, weight, scales, dtype=dtype), is_timed=False)

    return {
        OURS: lambda: Variant(lambda: fp8_linear(x, x_scales, weight, scales, dtype=dtype)),
        "torch _scaled_mm": scaled_mm,
        DENSE: dense,
        REFERENCE: reference,
    }


def tokens_variants(
    num_tokens: int, num_inputs: int, dtype: torch.dtype, device: torch.device
) -> dict[str, MakeVariant]:
    x = torch.randn(num_tokens, num_inputs, dtype=dtype, device=device)

    def dequantised(found: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        codes, scales = found
        return (codes.float() * scales[:, None],)

    return {
        OURS: lambda: Variant(lambda: quantise_tokens(x), dequantised),
        "torch eager": lambda: Variant(lambda: quantise_tokens_reference(x), dequantised),
    }


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
