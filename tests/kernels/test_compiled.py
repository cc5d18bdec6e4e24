"""Every kernel as it is compiled for GPUs, executed by the emulator and compared with fp64 oracles.

What a CPU cannot show runs here: fp8 by hardware, the compiler's layouts, pipelines and barriers,
and any access out of bounds. `make test` runs a sample (SMALL), `--full` everything; most of its time is compiling.
"""

import dataclasses
import importlib
import itertools

import pytest
import torch

from ptx_emulator import emulated, inspect_call
from tests.kernels import each_kernel
from tests.kernels.attention_grid import GridPoint, typical_points
from tests.kernels.linear_cases import LinearPoint, check_fp8_linear, check_linear, sample_points
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_splits import check_sum
from tests.kernels.test_merge_splits import check_merge
from tests.kernels.test_paged_decode import check_few, check_lengths
from tests.kernels.test_paged_prefill import check_chunks
from tests.kernels.test_rmsnorm_residual import check_rmsnorm
from tests.kernels.test_rope_kv_write import KV_FORMATS, check_rope_kv_write
from tests.kernels.test_sampling import check_draws, check_weights
from tests.kernels.test_silu_mul import check_silu_mul
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.paged_decode import max_rows
from twophase_kernels.quantized_linear import quantized_linear
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.sampling import draw_tokens, weigh
from twophase_kernels.silu_mul import silu_mul

pytest.importorskip("triton", reason="not run here: no triton")

COMPILED_FOR = ("sm_80", "sm_90")
SAMPLED_FOR = (pytest.param("sm_80", marks=pytest.mark.full), "sm_90")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SMALL = GridPoint(BF16, "none", 64, (9, 3), 16, None, 0, 2)


def on(target, check, *args, **options):
    """check(*args, **options) with kernels emulated; runs in the process that compiles."""
    with emulated(target) as driver:
        check(*args, **options)
    assert driver.launches, "no kernel ran"


def of(check, module, *args, **options):
    """A check that takes a module, whose name can travel to that process."""
    check(importlib.import_module(f"twophase_kernels.{module}"), *args, **options)


# -- attention --------------------------------------------------------------------------------------------------------


def check_decode(point):
    """Ragged: one key, a page and one, none, a tile and one."""
    check_lengths(point, [1, point.page + 1, 0, 129])


def check_drafts(point):
    """Drafts to verify in tiles of 16 or 64 rows: no token, all of them, one, some; a sequence that is nothing else."""
    num_rows = 16 if point.page == 16 and point.group <= 8 else 64
    n = min(num_rows, max_rows(point.head_dim)) // point.group
    check_few(point, [7, 130, 1, n], [0, n, 1, n])
    check_few(dataclasses.replace(point, num_splits=None), [n, 600, 0, 33], [n, 2, 0, 1])


def check_prefill(point):
    """Chunks of prompts with and without cached tokens before them, one of them empty."""
    check_chunks(point, [5, 0, 33, 1], [0, 7, 70, point.page])


def in_turn(points):
    """The same, every other one in bf16, the dtype of most GPUs' kernels."""
    turns = itertools.cycle((BF16, FP16, BF16, FP32))
    return [dataclasses.replace(point, dtype=dtype) for point, dtype in zip(points, turns, strict=False)]


GROUPS = [dataclasses.replace(SMALL, heads=(group, 1), num_splits=1) for group in (2, 6, 7, 8, 9)]
FORMATS = [
    dataclasses.replace(SMALL, kv_format=kv_format, head_dim=128, heads=(8, 2)) for kv_format in ("int8", "fp8_e4m3")
]
EMULATED = [(target, point) for target in COMPILED_FOR for point in (*in_turn(typical_points()), *FORMATS)]
EMULATED += [("sm_90", point) for point in GROUPS] + [("sm_89", point) for point in (SMALL, *FORMATS)]
EMULATED += [("sm_86", SMALL)]


@pytest.mark.full
@pytest.mark.parametrize("check", [check_decode, check_drafts, check_prefill], ids=lambda check: check.__name__)
@pytest.mark.parametrize(("target", "point"), EMULATED, ids=str)
def test_attention(compiling, target, point, check):
    compiling.call(on, target, check, point)


def check_long():
    """Many tiles, so that every buffer of the pipeline is used again and again; the fixed chunks; a long window."""
    point = dataclasses.replace(SMALL, heads=(4, 2), num_splits=1)
    check_lengths(point, [1100, 700, 3])
    check_lengths(dataclasses.replace(point, num_splits=None), [1100, 513, 40], deterministic=True)
    check_lengths(dataclasses.replace(point, num_splits=2, window=600, num_sinks=70), [1100, 513])
    check_chunks(point, [300, 129], [0, 200])
    check_chunks(dataclasses.replace(point, window=100, num_sinks=4), [200, 65], [150, 300])


# -- the others -------------------------------------------------------------------------------------------------------


def check_writes():
    for kv_format in KV_FORMATS:
        shapes = [(3, 64, 16, 7), (1, 80, 32, 5), (5, 96, 16, 6), (2, 256, 128, 5)]
        for shape, dtype in zip(shapes, (BF16, FP16, FP32, BF16), strict=True):
            check_rope_kv_write(rope_kv_write, (2 * shape[0], *shape), dtype, kv_format)


def check_rows():
    for dtype, has_residual in itertools.product((BF16, FP16, FP32), (True, False)):
        for shape in ((1, 1), (19, 80), (2, 257), (2, 3000)):
            check_rmsnorm(rmsnorm_residual, shape, dtype, has_residual=has_residual)
            check_silu_mul(silu_mul, shape, dtype)
            of(check_tokens, "fp8_linear", *shape, dtype)


def check_sums():
    for num_splits, head_dim in ((1, 64), (17, 80), (128, 256)):
        of(check_merge, "merge_splits", num_splits, head_dim)
    for dtype, num_splits in itertools.product((BF16, FP16, FP32), (1, 3, 16)):
        of(check_sum, "linear_splits", num_splits, dtype=dtype)


def check_sampling():
    for vocab_size in (300, 4097):
        check_weights(weigh, vocab_size)
        check_draws(draw_tokens, vocab_size, num_draws=1)


def check_long_linear():
    """Many steps, so that every buffer of the pipeline is used again and again."""
    for (group, has_minima), num_tokens in itertools.product(((32, True), (128, False), (0, False)), (2, 40)):
        of(check_linear, "quantized_linear", LinearPoint(num_tokens, 20, 1920, group, has_minima, BF16, tiles=None))


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize(
    "check",
    [check_long, check_writes, check_rows, check_sums, check_sampling, check_long_linear],
    ids=lambda check: check.__name__,
)
def test_whole(compiling, target, check):
    compiling.call(on, target, check)


# A tile of few tokens and one of many, a rest of a step, each way of storing weights, several splits.
LINEAR_SAMPLE = [
    LinearPoint(3, 130, 160, 32, True, BF16, num_splits=2, has_bias=True, tiles=None),
    LinearPoint(17, 33, 192, 64, False, FP16, tiles=None),
    LinearPoint(3, 130, 200, 0, False, BF16, tiles=None),
]


# With the tiles of production: 8, 16, 32 and 64 tokens wide.
LINEAR_POINTS = [dataclasses.replace(point, tiles=None) for point in in_turn(sample_points(1))]
LINEARS = [(target, point) for target in COMPILED_FOR for point in LINEAR_POINTS]
LINEARS += [("sm_89", LINEAR_SAMPLE[0]), ("sm_86", LINEAR_SAMPLE[2])]


@pytest.mark.full
@pytest.mark.parametrize(("target", "point"), LINEARS, ids=str)
def test_linear(compiling, target, point):
    compiling.call(on, target, of, check_linear, "quantized_linear", point)


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90"])  # the latter two multiply fp8 in hardware
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_fp8_linear(compiling, target, dtype):
    for shape in ((1, 1, 16), (9, 40, 208), (17, 100, 576), (70, 31, 272), (3, 20, 1920)):
        for num_splits, has_bias in ((1, True), (3, False)):
            point = LinearPoint(*shape, dtype=dtype, num_splits=num_splits, has_bias=has_bias, tiles=None)
            compiling.call(on, target, of, check_fp8_linear, "fp8_linear", point)


# -- a sample ---------------------------------------------------------------------------------------------------------


def attention_sample():
    check_lengths(SMALL, [1, 17, 0, 140])
    check_few(SMALL, [7, 130, 1, 33], [0, 5, 1, 3])
    check_prefill(SMALL)


def elementwise_sample():
    each_kernel.test_elementwise(BF16)
    of(check_tokens, "fp8_linear", 3, 576, BF16)
    each_kernel.test_sampling()


def linear_sample():
    for point in LINEAR_SAMPLE:
        of(check_linear, "quantized_linear", point)
    of(check_fp8_linear, "fp8_linear", LinearPoint(17, 100, 576, dtype=BF16, num_splits=3, has_bias=True, tiles=None))


@pytest.mark.parametrize("target", SAMPLED_FOR)
@pytest.mark.parametrize("sample", [attention_sample, elementwise_sample, linear_sample], ids=lambda s: s.__name__)
def test_sample(compiling, target, sample):
    compiling.call(on, target, sample)


@pytest.mark.parametrize("target", SAMPLED_FOR)
def test_weights_are_read_once_and_at_full_width(compiling, target):
    """Counted: each byte of a weight moves once, 16 to a thread, all of each sector used; no bank conflicts."""
    x, scales = torch.randn(1, 512, dtype=BF16), torch.ones(16, 256)
    for bits, *others in ((4, scales, scales), (8, scales[0])):
        packed = pack_codes(torch.ones(256, 512, dtype=torch.int8), bits)
        report = compiling.call(inspect_call, quantized_linear, x, packed, *others, target=target, num_splits=1)
        weights, *others = report.global_accesses
        assert (weights.thread_bytes, weights.efficiency) == (16, 1)
        assert weights.bytes_moved == packed.nbytes
        assert all(access.efficiency == 1 for access in others)
        assert report.conflicts == report.stack_bytes == 0
        assert report.bytes_in_flight >= 2 * 128 * 128 * packed.nbytes // (256 * 512)
