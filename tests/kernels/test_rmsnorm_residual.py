"""rmsnorm_residual against the formula in fp64."""

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, moved
from tests.kernels.covering import selected
from tests.kernels.elementwise import assert_rounded_once, poisoned_memory
from tests.kernels.planting import noticing
from twophase_kernels.rmsnorm_residual import rmsnorm_residual, rmsnorm_residual_reference

pytest.importorskip("triton", reason="not run here: no triton")

# (T, N): one element, one row, several short rows per program, widths around a power of two, wide rows.
SHAPES = ((1, 1), (5, 64), (19, 80), (3, 255), (2, 257), (3, 576), (2, 3000))
# Relative error of the fp32 arithmetic: N squares summed by halving (log2 N roundings), rsqrt (2 ulp), two products.
FP32_RELATIVE = 2e-6


def check_rmsnorm(function, shape=SHAPES[2], dtype=torch.float32, device=HERE, has_residual=True, eps=1e-2):
    num_rows, width = shape
    rng = torch.Generator().manual_seed(0)
    # Rows from tiny (eps decides) over ordinary to large (squares overflow float16); strides wider than the rows.
    magnitude = torch.logspace(-3, 2.4, num_rows)[:, None] if num_rows > 1 else torch.ones(1, 1)
    x, residual = (
        (magnitude * torch.randn(num_rows, width + pad, generator=rng)).to(device, dtype)[:, :width] for pad in (3, 16)
    )
    if num_rows > 2:
        x[1] = residual[1] = 0  # an all-zero row gives zeros
    if not has_residual:
        residual = None
    weight = (1 + torch.randn(width, generator=rng)).to(device, dtype)
    before = [None if each is None else each.clone() for each in (x, residual)]
    with poisoned_memory():
        y, residual_out = function(x, residual, weight, eps)
    assert torch.equal(x, before[0]), "x was overwritten"
    if residual is None:
        assert residual_out is x
    else:
        assert torch.equal(residual, before[1]), "residual was overwritten"
        exact_sum = x.double().cpu() + residual.double().cpu()
        assert residual_out.dtype == dtype
        assert_rounded_once(residual_out, exact_sum, 0.0, "residual_out")
    # y belongs to the sum as it was handed on, which has just been checked.
    h = residual_out.double().cpu()
    want = h / (h.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double().cpu()
    assert y.dtype == dtype
    assert_rounded_once(y, want, FP32_RELATIVE * want.abs(), "y")


@pytest.mark.parametrize(("shape", "dtype", "has_residual"), selected(SHAPES, DTYPES, (True, False)), ids=str)
def test_kernel(shape, dtype, has_residual):
    check_rmsnorm(rmsnorm_residual, shape, dtype, has_residual=has_residual)


def test_reference():
    for has_residual in (True, False):
        check_rmsnorm(rmsnorm_residual_reference, (7, 96), torch.float16, "cpu", has_residual)


def test_weight_of_another_dtype():
    x = torch.randn(3, 64, device=HERE).half()
    weight = torch.rand(64, device=HERE)
    y, _ = rmsnorm_residual(x, None, weight, 1e-6)
    want, _ = rmsnorm_residual_reference(x, None, weight, 1e-6)
    assert y.dtype == torch.float16
    assert_rounded_once(y, want.double().cpu(), want.double().abs().cpu() * 2**-11, "y")


def test_no_rows():
    x = torch.empty(0, 64, device=HERE)
    y, residual_out = rmsnorm_residual(x, x.clone(), torch.ones(64, device=HERE), 1e-5)
    assert y.shape == residual_out.shape == (0, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(8, 4).T}, r"x must be .*, contiguous from N on"),
        ({"x": torch.zeros(4, 0), "residual": None, "weight": torch.zeros(0)}, "1 to 65536 elements, got 0"),
        ({"residual": torch.zeros(3, 8)}, r"residual must be float32 \[T=4, N=8\]"),
        ({"weight": torch.zeros(16)[::2]}, "weight must be contiguous"),
        ({"weight": torch.zeros(8, device="meta")}, "weight must be where x is"),
        ({"eps": float("nan")}, "eps must be at least 0"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"x": torch.zeros(4, 8), "residual": torch.zeros(4, 8), "weight": torch.zeros(8), "eps": 1e-5} | change
    eps = arguments.pop("eps")
    arguments = {name: x if x is None or x.is_meta else moved(x, HERE) for name, x in arguments.items()}
    with pytest.raises(ValueError, match=message):
        rmsnorm_residual(**arguments, eps=eps)


def check(module):
    for dtype in (torch.float32, torch.float16):
        for has_residual in (True, False):
            check_rmsnorm(module.rmsnorm_residual, (19, 80), dtype, has_residual=has_residual)


MUTANTS = {("rmsnorm_residual",): [
    ("eps forgotten", "tl.rsqrt(mean_square + eps)", "tl.rsqrt(tl.maximum(mean_square, 1e-30))", check),
    ("sum not rounded", "(h.to(tl.float32) + residual.to(tl.float32)).to(h.dtype)", "(h.to(tl.float32) + residual.to(tl.float32))", check),
    ("x stride for the residual", "rows[:, None] * residual_row_stride", "rows[:, None] * x_row_stride", check),
    ("last row dropped", "(rows < num_rows)", "(rows < num_rows - 1)", check),
]}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
