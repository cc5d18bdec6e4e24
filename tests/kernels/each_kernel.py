"""Run by test_each_kernel.py in processes of their own: each kernel a few times, interpreted, or compiled as in production.

To debug a kernel: `TWOPHASE_KERNELS=interpreted python -m pytest tests/kernels/each_kernel.py -k decode --pdb`.
"""

import pytest
import torch

from ptx_emulator import emulated
from tests.kernels import test_paged_decode, test_paged_prefill
from tests.kernels.attention_grid import GridPoint, typical_points
from tests.kernels.cases import make_case
from tests.kernels.linear_cases import LinearPoint, check_fp8_linear, check_linear
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_layers import layer, multiply
from tests.kernels.test_packed_linear import check_packed_linear, check_products
from tests.kernels.test_rmsnorm_residual import check_rmsnorm
from tests.kernels.test_rope_kv_write import check_rope_kv_write
from tests.kernels.test_sampling import check_draws, check_weights
from tests.kernels.test_silu_mul import check_silu_mul
from twophase_kernels import KernelsUnavailableError, fp8_linear, mode, packed_linear, quantized_linear
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.sampling import draw_tokens, weigh
from twophase_kernels.silu_mul import silu_mul

IS_INTERPRETED = mode() == "interpreted"
FP32 = torch.float32
POINTS = [
    GridPoint(FP32, "none", 64, (4, 2), 16, None, 0, 3),
    GridPoint(FP32, "int8", 80, (3, 1), 32, 24, 5, 1),
    GridPoint(FP32, "fp8_e4m3", 64, (2, 2), 16, None, 0, 2),
]
DTYPES = (FP32,) if IS_INTERPRETED else (FP32, torch.float16, torch.bfloat16)
only_interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="about the interpreter")


@pytest.mark.parametrize("point", POINTS if IS_INTERPRETED else typical_points(), ids=str)
def test_attention(point):
    test_paged_decode.check_lengths(point, [1, 17, 0, 70])
    test_paged_decode.check_few(point, [5, 17, 70], [0, 1, 2])
    test_paged_prefill.check_chunks(point, [5, 0, 20], [0, 7, 70])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise(dtype):
    check_silu_mul(silu_mul, (5, 63), dtype)
    check_rmsnorm(rmsnorm_residual, (5, 80), dtype)
    for kv_format in ("none", "int8", "fp8_e4m3"):
        check_rope_kv_write(rope_kv_write, (6, 2, 80, 16, 7), dtype, kv_format)


def test_sampling():
    check_weights(weigh, 300)
    check_draws(draw_tokens, 300, num_draws=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear(dtype):
    for group in (32, 0):
        check_linear(quantized_linear, LinearPoint(5, 40, 96, group, group == 32, dtype, num_splits=2, has_bias=True))
    check_fp8_linear(fp8_linear, LinearPoint(5, 40, 80, dtype=dtype, has_bias=True))
    check_tokens(fp8_linear, 3, 48, dtype)
    if dtype != torch.float16:
        check_packed_linear(packed_linear, (3, 65, 33), dtype)
        check_products(packed_linear, [dtype], [(4, 70, 64, 32), (8, 70, 32, 32)])


@only_interpreted
def test_the_emulator_is_refused():
    with pytest.raises(KernelsUnavailableError, match="started without TRITON_INTERPRET"), emulated("sm_90"):
        pass


@only_interpreted
def test_bfloat16_is_refused():
    """In which the interpreter computes garbage."""
    narrow = torch.ones(2, 16, dtype=torch.bfloat16)
    for launch in (
        lambda: silu_mul(narrow),
        lambda: rmsnorm_residual(narrow.float(), None, narrow[0], 1e-5),
        lambda: test_paged_decode.check(make_case([3], dtype=torch.bfloat16)),
        lambda: multiply("int4", **layer("int4") | {"bias": narrow.new_zeros(20)}),
        lambda: fp8_linear.quantise_tokens(narrow),
    ):
        with pytest.raises(KernelsUnavailableError, match="interpreter computes garbage in bfloat16"):
            launch()
    assert mode(torch.float16) == mode(torch.float32) == mode(torch.int8) == "interpreted"
