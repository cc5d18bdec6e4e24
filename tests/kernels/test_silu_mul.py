"""silu_mul against the formula in fp64."""

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE
from tests.kernels.covering import selected
from tests.kernels.elementwise import assert_rounded_once, poisoned_memory
from tests.kernels.planting import noticing
from twophase_kernels.silu_mul import silu_mul, silu_mul_reference

pytest.importorskip("triton", reason="not run here: no triton")

# (T, I): one element, odd widths, widths around a program's 1024 elements.
SHAPES = ((1, 1), (5, 63), (3, 1023), (2, 1025), (2, 1536))


def check_silu_mul(function, shape=SHAPES[1], dtype=torch.float32, device=HERE):
    num_rows, width = shape
    rng = torch.Generator().manual_seed(0)
    # A row stride wider than the row; the padding is NaN.
    gate_up = torch.full((num_rows, 2 * width + 5), float("nan"))
    gate_up[:, : 2 * width] = 4 * torch.randn(num_rows, 2 * width, generator=rng)
    extreme = torch.tensor([0.0, -0.0, 200.0, -200.0, 1e4, -1e4, -17.0, -30.0])[:width]
    gate_up[-1, : len(extreme)] = extreme  # gates whose exp(-g) overflows fp32, or vanishes
    gate_up = gate_up.to(device, dtype)[:, : 2 * width]
    before = gate_up.clone()
    with poisoned_memory():
        got = function(gate_up)
    assert torch.equal(gate_up, before), "the input was overwritten"
    gate, up = before.double().cpu().chunk(2, dim=-1)
    want = gate / (1 + torch.exp(-gate)) * up
    assert got.dtype == dtype
    # The exponent g * log2(e) is rounded to fp32: 2^-24 of it, relative, in the result; below -87, fp32 runs out.
    fp32_error = (2e-6 + 2.0**-23 * gate.abs()) * want.abs() + 1e-36
    assert_rounded_once(got, want, fp32_error, "silu(gate) * up")


@pytest.mark.parametrize(("shape", "dtype"), selected(SHAPES, DTYPES), ids=str)
def test_kernel(shape, dtype):
    check_silu_mul(silu_mul, shape, dtype)


def test_reference():
    check_silu_mul(silu_mul_reference, (5, 96), torch.float16, "cpu")


def test_nothing_to_do():
    assert silu_mul(torch.empty(0, 64, device=HERE)).shape == (0, 32)
    assert silu_mul(torch.empty(3, 0, device=HERE)).shape == (3, 0)


@pytest.mark.parametrize(
    "gate_up",
    [torch.zeros(4, 7), torch.zeros(2, 4, 8), torch.zeros(4, 8, dtype=torch.float64), torch.zeros(8, 4).T],
    ids=["odd width", "three dimensions", "float64", "columns contiguous"],
)
def test_wrong_arguments(gate_up):
    with pytest.raises(ValueError, match=r"gate_up must be .*\[T, 2I\]"):
        silu_mul(gate_up.to(HERE))


def check(module):
    check_silu_mul(module.silu_mul, (5, 63), torch.float32)
    check_silu_mul(module.silu_mul, (2, 1025), torch.float16)


MUTANTS = {("silu_mul",): [
    ("sigmoid of minus gate", "tl.where(gate >= 0, 1.0, decay)", "tl.where(gate < 0, 1.0, decay)", check),
    ("packed input assumed", "row * gate_up_row_stride", "row * (2 * WIDTH)", check),
    ("tail dropped", "cdiv(width, block)", "width // block", check),
]}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
