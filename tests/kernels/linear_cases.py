"""What the tests of the linear kernels share: layers between poison, an oracle in fp64, and a bound on the error.

Kernels multiply exact codes and sum in fp32; the result alone is rounded. So the error allowed is a few fp32 roundings
of the sum of magnitudes |w| |x|, and one of the result, for any dtype.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import covering
from tests.kernels.elementwise import assert_rounded_once, kept_workspace, poisoned_memory
from twophase_kernels.fp8_linear import E4M3
from twophase_kernels.linear_splits import LinearTiles
from twophase_kernels.packed_codes import pack_codes

# Of the sum of magnitudes: partial sums of a few hundred terms are rounded, or cut off where a matrix unit adds, by
# 2^-24 of themselves each, and they are much smaller than that sum.
FP32_SUM_ERROR = 32 * 2.0**-24
# Hopper's fp8 instruction cuts off each of 32 products, and the sum so far, 13 bits below the largest's exponent: so
# computed, sums of an H200 come out to the last digits. On codes of all sizes the worst was 3 * 2^-13 of the magnitudes.
FP8_SUM_ERROR = 2.0**-11 if HERE == "cuda" else FP32_SUM_ERROR

# Tiles that leave a rest of everything at small shapes, and the same on a GPU as here.
SMALL_TILES = LinearTiles(32, 16, 128, num_warps=4, num_stages=2)

# Rows of poison around everything: as many as a tile may reach too far.
GUARD = 16


@dataclass(frozen=True)
class LinearPoint:
    """One layer and one way to run it. group 0: 8 bits, a scale per output."""

    num_tokens: int
    num_outputs: int
    num_inputs: int
    group: int = 32
    has_minima: bool = True
    dtype: torch.dtype = torch.float32
    num_splits: int = 1
    has_bias: bool = False
    tiles: LinearTiles | None = SMALL_TILES

    def __str__(self) -> str:
        weight = f"g{self.group}" + ("m" if self.has_minima else "") if self.group else "int8"
        dtype = str(self.dtype).removeprefix("torch.")
        shape = f"{self.num_tokens}x{self.num_inputs}x{self.num_outputs}"
        tiles = "-small" if self.tiles else ""
        return f"{weight}-{dtype}-{shape}-s{self.num_splits}{'-bias' if self.has_bias else ''}{tiles}"


def sample_points(strength: int) -> list[LinearPoint]:
    """Ragged layers with every value, or every two; most dimensions leave a rest of a tile."""
    tokens, outputs, inputs = (1, 2, 7, 8, 9, 16, 33, 70), (1, 3, 31, 32, 65, 100), (1, 96, 161, 417, 896)
    weights = (32, True), (64, False), (128, True), (0, False), (32, False), (64, True), (128, False)
    axes = tokens, outputs, inputs, weights, DTYPES, (1, 2, 3, 5), (True, False), (None, SMALL_TILES)
    return [
        LinearPoint(num_tokens, num_outputs, -(-columns // (group or 1)) * (group or 1), group, has_minima, *others)
        for num_tokens, num_outputs, columns, (group, has_minima), *others in covering(axes, strength)
    ]


def between_poison(rows: Tensor, poison: float) -> Tensor:
    """The same, contiguous, between rows of poison of its own storage."""
    guard = rows.new_full((GUARD, *rows.shape[1:]), poison)
    return torch.cat([guard, rows, guard])[GUARD:-GUARD]


def activations(num_tokens: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """[T, I] with a few outliers, rows wider apart than they are long, NaN between and around them."""
    x = torch.randn(num_tokens, num_inputs, generator=generator(1))
    x[:, :: max(1, num_inputs // 3)] *= 30
    buffer = torch.full((num_tokens + 2 * GUARD, num_inputs + 16), math.nan)
    buffer[GUARD:-GUARD, :num_inputs] = x
    return buffer.to(HERE, dtype)[GUARD:-GUARD, :num_inputs]


def make_codes(num_outputs: int, num_inputs: int, lowest: int, highest: int) -> Tensor:
    """int64 [O, I], both ends among them."""
    codes = torch.randint(lowest, highest + 1, (num_outputs, num_inputs), generator=generator(2))
    codes.view(-1)[:2] = torch.tensor([lowest, highest])[: codes.numel()]
    return codes


def check_linear(module, point: LinearPoint) -> None:
    """`quantized_linear` of `module` and its reference on one layer, against the oracle."""
    p, rng = point, generator(3)
    x = activations(p.num_tokens, p.num_inputs, p.dtype)
    num_groups = p.num_inputs // p.group if p.group else 1
    # Of different sizes, so that one group's scale is no other's.
    scales = 0.01 + torch.rand(num_groups, p.num_outputs, generator=rng) ** 2
    minima = -8 * torch.rand(num_groups, p.num_outputs, generator=rng) * scales if p.has_minima else None
    limits = (-128, 127) if not p.group else (0, 15) if p.has_minima else (-8, 7)
    codes = make_codes(p.num_outputs, p.num_inputs, *limits)
    args = [between_poison(pack_codes(codes, 4 if p.group else 8), 0x7531)]
    args += [between_poison(each, math.nan) for each in (scales if p.group else scales[0], minima) if each is not None]

    def of_columns(groups: Tensor) -> Tensor:
        return groups.double().T.repeat_interleave(p.group or p.num_inputs, dim=1)

    w = codes.double() * of_columns(scales)
    magnitude = w.abs()
    if minima is not None:
        w, magnitude = w + of_columns(minima), magnitude + of_columns(minima).abs()
    _check_product(module, "quantized_linear", [x, *args], x, w, magnitude, p, FP32_SUM_ERROR)


def check_fp8_linear(module, point: LinearPoint) -> None:
    """fp8_linear of `module` and its reference on codes of all sizes, against the oracle; the point's group is unused."""
    p, rng = point, generator(4)

    def codes_of(num_rows: int) -> Tensor:
        bits = torch.randint(0, 255, (num_rows, p.num_inputs), generator=rng)
        bits[bits == 0x7F] = 0x7E  # no NaN; 255 is not drawn
        return between_poison(bits.to(torch.uint8), 0x7E).view(E4M3)

    x, weight = codes_of(p.num_tokens), codes_of(p.num_outputs)
    x_scales, scales = (
        between_poison(0.01 + torch.rand(n, generator=rng) ** 2, math.nan) for n in (p.num_tokens, p.num_outputs)
    )
    x_scales *= 1e-4  # results of some thousands, which fp16 holds
    w = weight.double() * scales.double()[:, None]
    args, x = (x, x_scales, weight, scales), x.double() * x_scales.double()[:, None]
    _check_product(module, "fp8_linear", args, x, w, w.abs(), p, FP8_SUM_ERROR, dtype=p.dtype)


def _check_product(
    module,
    name: str,
    args: Iterable[Tensor],
    x: Tensor,
    w: Tensor,
    magnitude: Tensor,
    point: LinearPoint,
    error: float,
    **options: object,
) -> None:
    """A kernel and its reference on the arguments, against x [T, I] times w [O, I], of terms of such a magnitude."""
    p, args = point, [tensor.to(HERE) for tensor in args]
    bias = torch.randn(p.num_outputs, generator=generator(5)).to(HERE, p.dtype) if p.has_bias else None
    guarded = torch.full((p.num_tokens + 2 * GUARD, p.num_outputs), 7.0, dtype=p.dtype, device=HERE)
    with poisoned_memory(), kept_workspace(module, guard=GUARD * (p.num_outputs + GUARD)):
        where = {"num_splits": p.num_splits, "tiles": p.tiles, "out": guarded[GUARD:-GUARD]}
        got = getattr(module, name)(*args, bias=bias, **where, **options)
    assert_linear(got, x, w, magnitude, bias, guarded, error)
    want = getattr(module, f"{name}_reference")(*args, bias=bias, **options)
    assert_linear(want, x, w, magnitude, bias, guarded, FP32_SUM_ERROR)


def assert_linear(
    got: Tensor, x: Tensor, w: Tensor, magnitude: Tensor, bias: Tensor | None, guarded: Tensor, error: float
) -> None:
    x, bias = x.double().cpu(), 0.0 if bias is None else bias.double().cpu()
    want = x @ w.T + bias
    allowed = error * (x.abs() @ magnitude.T + abs(bias)) + 1e-30
    assert_rounded_once(got, want, allowed, "y")
    for rows in (guarded[:GUARD], guarded[-GUARD:]):
        assert (rows == 7).all(), "wrote outside of the result"
