"""fp8_linear against the product of the decoded codes in fp64, and the quantiser of its activations bit by bit."""

import math
from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import selected
from tests.kernels.elementwise import poisoned_memory
from tests.kernels.linear_cases import LinearPoint, activations, check_fp8_linear
from twophase_kernels import fp8_linear as module
from twophase_kernels.fp8_linear import E4M3, fp8_linear, quantise_tokens

pytest.importorskip("triton", reason="not run here: no triton")

# (T, O, I): one of everything, rests of tiles, steps and splits.
SHAPES = ((1, 1, 16), (3, 33, 128), (9, 40, 208), (17, 100, 576), (70, 31, 272))


@pytest.mark.parametrize(("shape", "dtype"), selected(SHAPES, DTYPES), ids=str)
def test_ragged(shape, dtype):
    point = LinearPoint(*shape, dtype=dtype, has_bias=True)
    check_fp8_linear(module, point)
    check_fp8_linear(module, replace(point, num_splits=3, has_bias=False))
    check_fp8_linear(module, replace(point, tiles=None))


def check_tokens(module, num_rows, num_inputs, dtype=torch.float32):
    """Codes and scales in torch's own rounding; the factor is a quotient of fp32 numbers."""
    x = activations(num_rows, num_inputs, dtype)
    x[-1] = 0
    x[0, -1] = 1e-3
    before, largest = x.clone(), x.float().abs().amax(-1).clamp(min=1e-30)
    want = (x.float() * (torch.full_like(largest, 448) / largest)[:, None]).clamp(-448, 448).to(E4M3)
    for quantise in (module.quantise_tokens, module.quantise_tokens_reference):
        with poisoned_memory():
            codes, scales = quantise(x)
        assert torch.equal(x, before), "the input was overwritten"
        assert (codes.dtype, scales.dtype) == (E4M3, torch.float32)
        assert torch.equal(codes.view(torch.uint8), want.view(torch.uint8))
        assert torch.equal(scales.cpu(), largest.cpu() / 448)


TOKENS = ((1, 1), (2, 5), (3, 576), (19, 80), (2, 1537))


@pytest.mark.parametrize(("shape", "dtype"), selected(TOKENS, DTYPES), ids=str)
def test_tokens(shape, dtype):
    check_tokens(module, *shape, dtype)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_token_that_is_not_finite_is_loud(value):
    x = torch.randn(3, 32, generator=generator(0)).to(HERE)
    x[1, 7] = value
    codes, scales = quantise_tokens(x)
    assert scales.isfinite().tolist() == [True, False, True]
    weight, weight_scales = quantise_tokens(torch.randn(4, 32, generator=generator(1)).to(HERE))
    y = fp8_linear(codes, scales, weight, weight_scales, dtype=torch.float32)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("x", [torch.zeros(3, 2).T, torch.zeros(1, 65537)], ids=["columns contiguous", "too wide"])
def test_tokens_refuse(x):
    with pytest.raises(ValueError, match=r"x must be .* \[T, I\], contiguous from I on|1 to 65536 elements"):
        quantise_tokens(x.to(HERE))
