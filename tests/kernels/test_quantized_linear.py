"""quantized_linear against the product in fp64 with the weights written out."""

import pytest
import torch

from tests.kernels.covering import selected
from tests.kernels.linear_cases import LinearPoint, check_linear, make_codes, sample_points
from twophase_kernels import quantized_linear as module
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.quantized_linear import quantized_linear_reference

pytest.importorskip("triton", reason="not run here: no triton")

SAMPLE = sample_points(70)


@pytest.mark.parametrize(
    "point", [pytest.param(p, id=str(p), marks=() if i < 7 else pytest.mark.full) for i, p in enumerate(SAMPLE)]
)
def test_ragged(point):
    check_linear(module, point)


@pytest.mark.parametrize(("num_splits", "group"), selected((1, 2, 3, 4, 5, 9, 16), (32, 0), strength=1))
def test_splits(num_splits, group):
    """Also more splits than steps: those without columns give zeros."""
    check_linear(module, LinearPoint(5, 40, 1120, group, group == 32, num_splits=num_splits, has_bias=True))


@pytest.mark.parametrize("group", [32, 0])
def test_the_reference(group):
    """Small integers, so that everything is exact: w = 0.5 code (- 2), written out here by hand."""
    x = torch.arange(2 * 64).view(2, 64).float() % 5
    codes = make_codes(3, 64, 0, 15)
    if group:
        got = quantized_linear_reference(x, pack_codes(codes, 4), torch.full((2, 3), 0.5), torch.full((2, 3), -2.0))
        w = 0.5 * codes - 2
    else:
        got = quantized_linear_reference(x, pack_codes(codes, 8), torch.full((3,), 0.5), bias=torch.tensor([1.0, 2, 3]))
        w = 0.5 * codes
    want = torch.tensor(
        [[sum(a * b for a, b in zip(row, column, strict=True)) for column in w.tolist()] for row in x.tolist()]
    )
    assert torch.equal(got, want if group else want + torch.tensor([1.0, 2, 3]))
