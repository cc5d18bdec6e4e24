"""fp8_linear against the product of the decoded codes in fp64, and the quantiser of its activations bit by bit."""

import math

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, generator
from tests.kernels.covering import selected
from tests.kernels.elementwise import poisoned_memory
from tests.kernels.linear_cases import activations, check_fp8_linear
from tests.kernels.test_linear_layers import layer
from twophase_kernels import fp8_linear as module
from twophase_kernels.fp8_linear import E4M3, fp8_linear, fp8_linear_reference, quantise_tokens

pytest.importorskip("triton", reason="not run here: no triton")

# (T, O, I): one of everything, rests of tiles, steps and splits.
SHAPES = ((1, 1, 16), (3, 33, 128), (9, 40, 208), (17, 100, 576), (70, 31, 272))


@pytest.mark.parametrize(("shape", "dtype"), selected(SHAPES, DTYPES, strength=1), ids=str)
def test_ragged(shape, dtype):
    check_fp8_linear(module, *shape, dtype, has_bias=True)
    check_fp8_linear(module, *shape, dtype, num_splits=3)
    check_fp8_linear(module, *shape, dtype, tiles=None)


@pytest.mark.parametrize("num_splits", [1, 2, 5, 16])
def test_splits(num_splits):
    check_fp8_linear(module, 5, 40, 1040, num_splits=num_splits, has_bias=True)


def oracle_of_tokens(x):
    """(codes, scales), in torch's own rounding; the factor is a quotient of fp32 numbers."""
    largest = x.float().abs().amax(-1).clamp(min=1e-30)
    scaled = x.float() * (torch.full_like(largest, 448) / largest)[:, None]
    return scaled.clamp(-448, 448).to(E4M3), largest / 448


def check_tokens(module, num_rows, num_inputs, dtype=torch.float32):
    x = activations(num_rows, num_inputs, dtype, HERE)
    x[-1] = 0
    x[0, -1] = 1e-3
    before = x.clone()
    with poisoned_memory():
        codes, scales = module.quantise_tokens(x)
    assert torch.equal(x, before), "the input was overwritten"
    want_codes, want_scales = oracle_of_tokens(x.cpu())
    assert codes.dtype == E4M3
    assert scales.dtype == torch.float32
    assert torch.equal(codes.cpu().view(torch.uint8), want_codes.view(torch.uint8))
    assert torch.equal(scales.cpu(), want_scales)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 576), (19, 80), (2, 1537)], ids=str)
def test_tokens(shape, dtype):
    check_tokens(module, *shape, dtype)


def test_the_reference_of_tokens():
    x = activations(5, 96, torch.float32, "cpu")
    codes, scales = module.quantise_tokens_reference(x)
    want_codes, want_scales = oracle_of_tokens(x)
    assert torch.equal(codes.view(torch.uint8), want_codes.view(torch.uint8))
    assert torch.equal(scales, want_scales)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_token_that_is_not_finite_is_loud(value):
    x = torch.randn(3, 32, generator=generator(0)).to(HERE)
    x[1, 7] = value
    codes, scales = quantise_tokens(x)
    assert not scales[1].isfinite()
    assert scales[[0, 2]].isfinite().all()
    weight, weight_scales = quantise_tokens(torch.randn(4, 32, generator=generator(1)).to(HERE))
    y = fp8_linear(codes, scales, weight, weight_scales, dtype=torch.float32)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


def test_the_reference():
    args = layer("fp8", num_inputs=64)
    bias = torch.arange(20.0, device=HERE)
    want = (args["x"].double() * args["x_scales"][:, None]) @ (
        args["weight"].double() * args["scales"][:, None]
    ).T + bias
    torch.testing.assert_close(fp8_linear_reference(**args, bias=bias).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("x", [torch.zeros(3, 2).T, torch.zeros(1, 65537)], ids=["columns contiguous", "too wide"])
def test_tokens_refuse(x):
    with pytest.raises(ValueError, match=r"x must be .* \[T, I\], contiguous from I on|1 to 65536 elements"):
        quantise_tokens(x.to(HERE))
