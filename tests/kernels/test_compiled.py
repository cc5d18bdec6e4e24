"""Every kernel as it is compiled for GPUs, executed by the emulator and compared with fp64 oracles.

What a CPU cannot show runs here: fp8 by hardware, the compiler's layouts, pipelines and barriers,
and any access out of bounds. `make test` runs a sample (SMALL), `--full` everything; most of its time is compiling.
"""

import dataclasses
import itertools

import pytest
import torch

from ptx_emulator import emulated, inspect_call
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
from tests.kernels.attention_grid import GridPoint, typical_points
from tests.kernels.cases import assert_attention, attention_oracle, make_case
from tests.kernels.linear_cases import LinearPoint, check_fp8_linear, check_linear, sample_points
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_splits import check_sum
from tests.kernels.test_merge_splits import check as check_merged
from tests.kernels.test_merge_splits import merged, partials_of
from tests.kernels.test_rmsnorm_residual import check_rmsnorm
from tests.kernels.test_rope_kv_write import check_rope_kv_write
from tests.kernels.test_silu_mul import check_silu_mul
from twophase_kernels import fp8_linear, linear_splits, quantized_linear
from twophase_kernels._triton import triton
from twophase_kernels.packed_codes import pack_codes
from twophase_kernels.paged_decode import max_rows, paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
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


# -- attention --------------------------------------------------------------------------------------------------------


def check_decode(point, seq_lens, query_lens=None, **options):
    """With `query_lens` several tokens per sequence."""
    case = make_case(
        seq_lens,
        query_lens,
        heads=point.heads,
        head_dim=point.head_dim,
        page=point.page,
        dtype=point.dtype,
        kv_format=point.kv_format,
    )
    options = {"window": point.window, "num_sinks": point.num_sinks, "num_splits": point.num_splits} | options
    if query_lens is not None:
        options |= {"cu_query_lens": case.cu_query_lens, "max_query_len": max(query_lens)}
    got = paged_decode(case.q, *case.cache, scale=case.scale, **case.scales, return_lse=True, **options)
    assert_attention(got, attention_oracle(case, options["window"], options["num_sinks"]))


def check_prefill(point, query_lens, cached, **options):
    case = make_case(
        [q + c for q, c in zip(query_lens, cached, strict=True)], query_lens, heads=point.heads,
        head_dim=point.head_dim, page=point.page, dtype=point.dtype, kv_format=point.kv_format,
    )  # fmt: skip
    options = {"max_query_len": max(query_lens), "window": point.window, "num_sinks": point.num_sinks} | options
    got = paged_prefill(
        case.q, *case.cache, case.cu_query_lens, scale=case.scale, **case.scales, return_lse=True, **options
    )
    assert_attention(got, attention_oracle(case, options["window"], options["num_sinks"]))


def points():
    """Of the grid, some that have every value between them, every other one in bf16, the dtype of most GPUs' kernels."""
    turns = itertools.cycle((BF16, FP16, BF16, FP32))
    return [dataclasses.replace(point, dtype=dtype) for point, dtype in zip(typical_points(), turns, strict=False)]


GROUPS = [dataclasses.replace(SMALL, heads=(group, 1), num_splits=1) for group in (2, 6, 7, 8, 9)]
FORMATS = [
    dataclasses.replace(SMALL, kv_format=kv_format, head_dim=128, heads=(8, 2)) for kv_format in ("int8", "fp8_e4m3")
]
DECODES = [(target, point) for target in COMPILED_FOR for point in (*points(), *FORMATS)]
DECODES += [("sm_90", point) for point in GROUPS]
DECODES += [("sm_89", point) for point in (SMALL, *FORMATS)]
PREFILLS = [(target, point) for target in COMPILED_FOR for point in (*points(), *FORMATS)]
PREFILLS += [("sm_80", GROUPS[0]), ("sm_90", GROUPS[2]), ("sm_89", FORMATS[1]), ("sm_86", SMALL)]


@pytest.mark.full
@pytest.mark.parametrize(("target", "point"), DECODES, ids=str)
def test_decode(compiling, target, point):
    """Ragged: one key, a page and one, none, a tile and one."""
    compiling.call(on, target, check_decode, point, [1, point.page + 1, 0, 129])


@pytest.mark.full
@pytest.mark.parametrize(("target", "point"), PREFILLS, ids=str)
def test_prefill(compiling, target, point):
    """Chunks of prompts with and without cached tokens before them, one of them empty."""
    compiling.call(on, target, check_prefill, point, [5, 0, 33, 1], [0, 7, 70, point.page])


def check_few(point, num_tokens):
    """Drafts to verify, ragged: no token, all of them, one, some; a sequence that is nothing else."""
    check_decode(point, [7, 130, 1, num_tokens], [0, num_tokens, 1, num_tokens])
    check_decode(point, [num_tokens, 600, 0, 33], [num_tokens, 2, 0, 1], num_splits=None)


FEW = [(target, point) for target in COMPILED_FOR for point in (*points(), *FORMATS)]
FEW += [("sm_90", point) for point in GROUPS] + [("sm_89", FORMATS[1])]
FEW = [(*each, num_rows) for each, num_rows in zip(FEW, itertools.cycle((16, 64, 16)), strict=False)]


@pytest.mark.full
@pytest.mark.parametrize(("target", "point", "num_rows"), FEW, ids=str)
def test_few_tokens(compiling, target, point, num_rows):
    group = point.heads[0] // point.heads[1]
    num_tokens = min(num_rows, max_rows(point.head_dim)) // group
    if num_tokens > 1:
        compiling.call(on, target, check_few, point, num_tokens)


@pytest.mark.parametrize("target", SAMPLED_FOR)
def test_sample_of_attention(compiling, target):
    compiling.call(on, target, check_decode, SMALL, [1, 17, 0, 140])
    compiling.call(on, target, check_decode, SMALL, [7, 130, 1, 33], [0, 5, 1, 3])
    compiling.call(on, target, check_prefill, SMALL, [5, 0, 33, 1], [0, 7, 70, 16])


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
def test_long_sequences(compiling, target):
    """Many tiles, so that every buffer of the pipeline is used again and again; the fixed chunks; a long window."""
    point = dataclasses.replace(SMALL, heads=(4, 2))
    compiling.call(on, target, check_decode, point, [1100, 700, 3], num_splits=1)
    compiling.call(on, target, check_decode, point, [1100, 513, 40], deterministic=True, num_splits=None)
    compiling.call(on, target, check_decode, point, [1100, 513], num_splits=2, window=600, num_sinks=70)
    compiling.call(on, target, check_prefill, point, [300, 129], [0, 200])
    compiling.call(on, target, check_prefill, point, [200, 65], [150, 300], window=100, num_sinks=4)


# -- the others -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", SAMPLED_FOR)
def test_sample_of_the_others(compiling, target):
    compiling.call(on, target, check_rope_kv_write, rope_kv_write, dtype=BF16)
    compiling.call(on, target, check_rmsnorm, rmsnorm_residual, (3, 576), BF16)
    compiling.call(on, target, check_silu_mul, silu_mul, (2, 1025), BF16)


SMALLER = [(3, 64, 16, 7), (1, 80, 32, 5), (5, 96, 16, 6), (2, 256, 128, 5)]


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize("kv_format", ["none", "int8", "fp8_e4m3"])
def test_writes(compiling, target, kv_format):
    for shape, dtype in zip(SMALLER, (BF16, FP16, FP32, BF16), strict=True):
        compiling.call(on, target, check_rope_kv_write, rope_kv_write, (2 * shape[0], *shape), dtype, kv_format)


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_rows(compiling, target, dtype):
    for shape in ((1, 1), (19, 80), (2, 257), (2, 3000)):
        for has_residual in (True, False):
            compiling.call(on, target, check_rmsnorm, rmsnorm_residual, shape, dtype, has_residual=has_residual)
    for shape in ((1, 1), (5, 63), (2, 1536)):
        compiling.call(on, target, check_silu_mul, silu_mul, shape, dtype)


def check_merge(num_splits, head_dim):
    inputs, want = partials_of(num_splits, head_dim)
    check_merged(merged(*inputs), want)


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
def test_merge(compiling, target):
    for num_splits, head_dim in ((1, 64), (17, 80), (128, 256)):
        compiling.call(on, target, check_merge, num_splits, head_dim)


# -- weights of fewer bits --------------------------------------------------------------------------------------------


def check_weights(point):
    check_linear(quantized_linear, point)


def check_quantised(num_tokens, num_inputs, dtype):
    check_tokens(fp8_linear, num_tokens, num_inputs, dtype)


def check_fp8(num_tokens, num_outputs, num_inputs, *options):
    check_fp8_linear(fp8_linear, num_tokens, num_outputs, num_inputs, *options)


def check_summed(num_splits, dtype):
    check_sum(linear_splits, num_splits, dtype=dtype)


# A tile of few tokens and one of many, a rest of a step, each way of storing weights, several splits.
LINEAR_SAMPLE = [
    LinearPoint(3, 130, 160, 32, True, BF16, num_splits=2, has_bias=True, tiles=None),
    LinearPoint(17, 33, 192, 64, False, FP16, tiles=None),
    LinearPoint(3, 130, 200, 0, False, BF16, tiles=None),
]


@pytest.mark.parametrize("target", SAMPLED_FOR)
def test_sample_of_linear(compiling, target):
    for point in LINEAR_SAMPLE:
        compiling.call(on, target, check_weights, point)
    compiling.call(on, target, check_quantised, 3, 576, BF16)
    if target == "sm_80":  # the emulator has no fp8 matrix instructions
        compiling.call(on, target, check_fp8, 3, 130, 208, BF16, 2, True, None)


@pytest.mark.parametrize("target", SAMPLED_FOR)
def test_weights_are_read_once_and_at_full_width(compiling, target):
    """Counted: each byte of a weight moves once, 16 to a thread, all of each sector used; no bank conflicts."""
    x, scales = torch.randn(1, 512, dtype=BF16), torch.ones(16, 256)
    for args in (
        (quantized_linear.quantized_linear, x, pack_codes(torch.ones(256, 512, dtype=torch.int8), 4), scales, scales),
        (quantized_linear.quantized_linear, x, pack_codes(torch.ones(256, 512, dtype=torch.int8), 8), scales[0]),
    ):
        report = compiling.call(inspect_call, *args, target=target, num_splits=1)
        weights, *others = report.global_accesses
        assert (weights.thread_bytes, weights.efficiency) == (16, 1)
        assert weights.bytes_moved == args[2].nbytes
        assert all(access.efficiency == 1 for access in others)
        assert report.conflicts == report.stack_bytes == 0
        assert report.bytes_in_flight >= 2 * 128 * 128 * args[2].nbytes // (256 * 512)


def linear_points(count):
    """Every other in bf16, with the tiles of production: 8, 16, 32 and 64 tokens wide."""
    turns = itertools.cycle((BF16, FP16, BF16, FP32))
    points = zip(sample_points(count, seed=1), turns, strict=False)
    return [dataclasses.replace(point, dtype=dtype, tiles=None) for point, dtype in points]


LINEARS = [(target, point) for target in COMPILED_FOR for point in linear_points(12)]
LINEARS += [("sm_89", LINEAR_SAMPLE[0]), ("sm_86", LINEAR_SAMPLE[2])]


@pytest.mark.full
@pytest.mark.parametrize(("target", "point"), LINEARS, ids=str)
def test_linear(compiling, target, point):
    compiling.call(on, target, check_weights, point)


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
def test_long_linear(compiling, target):
    """Many steps, so that every buffer of the pipeline is used again and again."""
    for group, has_minima in ((32, True), (128, False), (0, False)):
        for num_tokens in (2, 40):
            point = LinearPoint(num_tokens, 20, 1920, group, has_minima, BF16, tiles=None)
            compiling.call(on, target, check_weights, point)


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_80", "sm_86"])  # the emulator has no fp8 matrix instructions
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_fp8_linear(compiling, target, dtype):
    for shape in ((1, 1, 16), (9, 40, 208), (17, 100, 576), (70, 31, 272), (3, 20, 1920)):
        compiling.call(on, target, check_fp8, *shape, dtype, 1, True, None)
        compiling.call(on, target, check_fp8, *shape, dtype, 3, False, None)


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_tokens_and_sums(compiling, target, dtype):
    for shape in ((1, 1), (19, 80), (2, 1537)):
        compiling.call(on, target, check_quantised, *shape, dtype)
    for num_splits in (1, 3, 16):
        compiling.call(on, target, check_summed, num_splits, dtype)


# -- the kernels of labs 2 and 3 --------------------------------------------------------------------------------------


def check_labs(target, dtype):
    """The solved cells' kernels, through the launches with which the labs call them."""
    from pathlib import Path

    from tests.kernels.cases import LSE_TOLERANCE, TOLERANCE, assert_close
    from twophase_labs.decode.launch import launch_paged_decode, launch_paged_decode_split
    from twophase_labs.machine.lab import Workbook
    from twophase_labs.machine.solved import run_reference
    from twophase_labs.prefill.launch import launch_add_rmsnorm, launch_kv_write, launch_paged_prefill

    book = Workbook(Path(__file__).parents[2])
    triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS[target]))  # what else the labs launch is left out
    prefill, decode = (run_reference(book.lab(number)) for number in ("02", "03"))
    with emulated(target) as driver:
        case = make_case([12, 33, 20], [5, 33, 1], dtype=dtype)
        k_cache, v_cache, tables, lens = case.cache
        got = launch_paged_prefill(
            prefill["paged_prefill_kernel"],
            case.q,
            k_cache,
            v_cache,
            tables,
            lens,
            case.cu_query_lens,
            case.scale,
            block_m=32,
            block_n=32,
        )
        assert_attention(got, attention_oracle(case))

        case = make_case([12, 70, 1], dtype=dtype)
        want = attention_oracle(case)
        out = launch_paged_decode(decode["paged_decode_kernel"], case.q, *case.cache, case.scale, block_n=32)
        assert_close(out, want[0], TOLERANCE[dtype])
        partial, lse = launch_paged_decode_split(
            decode["paged_decode_split_kernel"], case.q, *case.cache, case.scale, num_splits=3, block_n=32
        )
        total = torch.logsumexp(lse.double() * 0.6931471805599453, -1) / 0.6931471805599453
        weights = torch.exp2(lse.double() - total[..., None])[..., None]
        assert_close((weights * partial.double()).sum(2), want[0], TOLERANCE[dtype])
        assert_close(total, want[1], LSE_TOLERANCE)

        new = torch.randn(4, 3, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
        caches = torch.zeros(2, 2, 3, 16, 64, dtype=dtype)
        launch_kv_write(prefill["kv_write_kernel"], new, -new, *caches, torch.tensor([5, -1, 31, 0]))
        for token, (block, offset) in ((0, (0, 5)), (2, (1, 15)), (3, (0, 0))):
            assert torch.equal(caches[0, block, :, offset], new[token])
            assert torch.equal(caches[1, block, :, offset], -new[token])
        assert caches.count_nonzero() == 2 * 3 * 3 * 64

        def add_rmsnorm(x, residual, weight, eps):
            return launch_add_rmsnorm(prefill["add_rmsnorm_kernel"], x, residual, weight, eps)

        x, residual = torch.randn(2, 5, 80, generator=torch.Generator().manual_seed(1)).to(dtype)
        y, h = add_rmsnorm(x, residual, torch.ones(80, dtype=dtype), 1e-5)
        assert torch.equal(h, (x.float() + residual.float()).to(dtype))
        norm = h.double() / (h.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
        assert_close(y, norm, TOLERANCE[dtype])
    assert driver.launches >= 5


@pytest.mark.full
@pytest.mark.parametrize("target", COMPILED_FOR)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_kernels_of_the_labs(compiling, target, dtype):
    compiling.call(check_labs, target, dtype)
