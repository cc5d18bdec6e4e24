"""Reductions, scans and shapes of a tile, compiled; softmax, layer norm and attention of Triton's tutorials.

An expression is compiled as a kernel has it, and evaluated with torch's functions in place of `tl`'s.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.kernels.cpu import small_kernels as kernels
from tests.kernels.cpu.harness import run

INF, NAN = float("inf"), float("nan")
TILES = {"M": 16, "N": 32, "D": 16}


def extreme(how, fill):
    """Of numbers, which step over NaN: NaN only where there is nothing else."""

    def reduced(x, axis=None):
        dims = axis if axis is not None else tuple(range(x.dim()))
        if not x.is_floating_point():
            return how(x, dims)
        nothing = x.isnan().all() if axis is None else x.isnan().all(axis)
        return torch.where(nothing, NAN, how(torch.where(x.isnan(), fill, x), dims))

    return reduced


def total(x, axis=None):
    """Exact in fp64, then rounded once; integers wrap around."""
    wide = x.double() if x.is_floating_point() else x
    return (wide.sum() if axis is None else wide.sum(axis)).to(x.dtype)


def xor(x, axis):
    answer = torch.zeros_like(x.select(axis, 0))
    for row in x.unbind(axis):
        answer ^= row
    return answer


def first(how):
    """The first of equal extremes."""
    return lambda x, axis: torch.tensor([row.index(how(row)) for row in (x if axis else x.T).tolist()])


IN_TORCH = SimpleNamespace(
    sum=total, max=extreme(torch.amax, -INF), min=extreme(torch.amin, INF), xor_sum=xor, argmax=first(max),
    argmin=first(min), reduce=lambda x, axis, combine: combine(x, axis), int64=torch.int64, int32=torch.int32,
    cumsum=lambda x, axis, reverse=False: x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis),
    cumprod=lambda x, axis: x.cumprod(axis), trans=torch.t, reshape=torch.reshape, permute=torch.permute,
    join=lambda a, b: torch.stack([a, b], -1), split=lambda x: x.unbind(-1),
)  # fmt: skip
COMBINATIONS = {"larger_with_nan": torch.amax, "smaller_with_nan": torch.amin, "times": torch.prod}


def check(expressions, x, checked=False):
    names = {"tl": IN_TORCH, "x": x, **COMBINATIONS}
    expected = [eval(text, names).to(x.dtype) for text in expressions]
    parts = [(text, tuple(one.shape)) for text, one in zip(expressions, expected, strict=True)]
    out = torch.zeros(sum(one.numel() for one in expected), dtype=x.dtype)
    assert run(kernels.of_a_tile(*x.shape, *parts), x, out, checked=checked) is None
    for text, found, one in zip(expressions, out.split([one.numel() for one in expected]), expected, strict=True):
        torch.testing.assert_close(found, one.flatten(), rtol=0, atol=0, equal_nan=True, msg=text)


SUMS_AND_EXTREMES = [f"tl.{name}(x{axis})" for axis in (", axis=1", ", axis=0", "") for name in ("sum", "max", "min")]


@pytest.mark.parametrize("kind", ["f32", "i32", "f64", "f16", "one row"])
def test_sum_max_min(kind):
    dtypes = {"i32": torch.int32, "f64": torch.float64, "f16": torch.float16}
    x = torch.randint(-9, 10, (1 if kind == "one row" else 8, 64), generator=torch.Generator().manual_seed(0))
    x[:, 3] = 30
    x[0, 7] = -40
    x[-1] = -1 - x[-1].abs()  # without a positive number
    check(SUMS_AND_EXTREMES, x.to(dtypes.get(kind, torch.float32)))


def test_extremes_step_over_nan():
    """NaN only where there is nothing else; minus infinity stays."""
    x = torch.randn(8, 64)
    x[0, 5:] = NAN
    x[1] = NAN
    x[2] = -INF
    x[3], x[4] = INF, torch.where(torch.arange(64) % 2 == 0, NAN, -INF)
    x[:, 9] = NAN
    check([text for text in SUMS_AND_EXTREMES if "sum" not in text], x)


def test_extremes_that_keep_nan_and_products():
    x = torch.randint(1, 3, (4, 16)).float()
    x[1, 3] = NAN
    x[2, 15], x[3] = -INF, -x[3]
    check([f"tl.reduce(x, {axis}, {name})" for axis in (1, 0) for name in COMBINATIONS], x)


def test_other_reductions():
    x = torch.randint(-50, 50, (8, 16), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    x[0, 4] = x[0, 9] = 70
    x[5] = x[2]
    wide = ["tl.max(x.to(tl.int64), axis=1).to(tl.int32)", "tl.sum((x > 0).to(tl.int32), axis=1)"]
    check([*(f"tl.{name}(x, axis={axis})" for name in ("argmax", "argmin", "xor_sum") for axis in (1, 0)), *wide], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_scans(dtype):
    x = torch.randint(-2, 3, (4, 16), generator=torch.Generator().manual_seed(0)).to(dtype)
    sums = ["tl.cumsum(x, axis=1)", "tl.cumsum(x, axis=0)", "tl.cumsum(x, axis=1, reverse=True)"]
    check([*sums, "tl.cumprod(x, axis=1)"], x)


def test_totals_of_fp16_are_rounded():
    """2048.5 is 2048 in fp16, to which the kernel adds 1, and that is 2048 again."""
    x = torch.zeros(16, 16, dtype=torch.float16)
    x[0, :], x[1, :], x[:, 0], x[:, 1] = 2048, 0.5, 2048, 0.5
    check(["tl.sum(x, axis=1) + 1", "tl.sum(x, axis=0) + 1"], x)


@pytest.mark.parametrize("checked", [False, True])
def test_shapes(checked):
    """Reshape, transposition, join, split, each on its way from memory to memory."""
    shapes = [
        "tl.reshape(tl.trans(x), [32])", "tl.reshape(tl.join(x + 1, x), [4, 16])", "tl.reshape(x, [8, 4]) * 2",
        "tl.reshape(tl.permute(tl.reshape(x, [2, 2, 8]), [2, 0, 1]), [32])",
        "tl.split(tl.reshape(x, [4, 4, 2]))[0] - tl.split(tl.reshape(x, [4, 4, 2]))[1]", "tl.trans(x)",
    ]  # fmt: skip
    check(shapes, torch.randn(4, 8), checked)


@pytest.mark.parametrize("n", [16, 50, 1])
@pytest.mark.parametrize("checked", [False, True])
def test_attention(n, checked):
    q, k, v = (torch.randn(n, 16).bfloat16() for _ in range(3))
    out = torch.zeros_like(q)
    grid = ((n + 15) // 16,)
    assert run(kernels.flash, q, k, v, out, n, 0.25, **TILES, grid=grid, checked=checked) is None
    scores = q.float() @ k.float().T * 0.25 + torch.full((n, n), -INF).triu(1)
    torch.testing.assert_close(out.float(), scores.softmax(1) @ v.float(), rtol=2e-2, atol=2e-2)
