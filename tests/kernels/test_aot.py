"""What the compiler makes of every production kernel, for GPUs that this machine need not have.

`--full` compiles all configurations for sm_90, a third for sm_86 and a sample for the others (`python -m
tests.kernels.aot --target sm_100` compiles everything for another), in processes of their own: caches must be empty.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest
import torch

from ptx_emulator import CompilingProcess
from ptx_emulator.compiled_code import matrix_loops
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
from tests.kernels.aot import CompiledReport, compile_beside, compile_configs
from tests.kernels.assembly import early_reads, kv_buffer_depth, loop_instructions
from tests.kernels.production import AotConfig, MetaLayer, MetaLinear, meta
from tests.kernels.production import production_configs as all_production_configs
from twophase_kernels._triton import tl, triton
from twophase_kernels.attend_range import Tiles
from twophase_kernels.fp8_linear import fp8_linear, quantise_tokens
from twophase_kernels.linear_splits import LinearTiles
from twophase_kernels.paged_decode import paged_decode
from twophase_kernels.paged_prefill import paged_prefill
from twophase_kernels.quantized_linear import quantized_linear
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.sampling import draw_tokens, weigh
from twophase_kernels.silu_mul import silu_mul

pytest.importorskip("triton", reason="not run here: no triton")

# Of attention one 16-bit and one fp8 configuration, and the largest heads; a way of storing weights; one of the others.
SAMPLE = (
    "paged_decode: bf16 32/8/128 page 16, 8 splits",
    "paged_decode: bf16 kv fp8_e4m3 32/8/128 page 16, split by length",
    "paged_decode: bf16 32/8/128 page 16, 8 splits, 5 tokens",
    "paged_prefill: bf16 32/8/128 page 16, chunks of 2048",
    "paged_prefill: bf16 kv fp8_e4m3 32/8/128 page 16, chunks of 2048",
    "paged_prefill: bf16 16/1/256 page 64, chunks of 2048",
    "rope_kv_write: bf16 kv int8 32/8/128 page 64",
    "rmsnorm_residual: bf16 4096 with residual",
    "silu_mul: bf16 14336",
    "sampling: 128256",
    "sampling: weights of 128256",
    "quantized_linear: bf16 int4 g32 minima, 4096 x 4096, T=1",
    "quantized_linear: bf16 int8, 4096 x 4096, T=16, bias",
    "fp8_linear: bf16 fp8, 4096 x 4096, T=32, 2 splits",
    "fp8_linear: bf16 tokens of 4096",
)
ATTENTION = {"paged_decode_kernel", "paged_prefill_kernel"}
ELEMENTWISE = {
    "rope_kv_write_kernel", "rmsnorm_residual_kernel", "silu_mul_kernel", "quantise_tokens_kernel", "weigh_kernel",
    "draw_kernel",
}  # fmt: skip
LINEAR = {"quantized_linear_kernel", "fp8_linear_kernel"}
AFTER_SPLITS = {"merge_splits_kernel", "sum_splits_kernel"}
# The largest matrix instruction, which 64 rows or more reach.
LARGEST = {"sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "v_mfma"}


def pattern_of(names: Iterable[str]) -> str:
    return "|".join(f"^{re.escape(name)}$" for name in names)


@pytest.fixture(scope="module")
def compiling():
    """A process of its own: its driver launches nothing."""
    with CompilingProcess() as process:
        yield process


def check_reports(reports: list[CompiledReport], target: str) -> None:
    kernels = {report.kernel for report in reports}
    assert kernels == ATTENTION | ELEMENTWISE | LINEAR | AFTER_SPLITS, "a kernel was not compiled, or is new here"
    problems = [f"{r.kernel}, {r.config}: {problem}" for r in reports for problem in r.problems()]
    assert not problems, f"{target}:\n" + "\n".join(problems)
    # Masks, scales and indices may be narrow; K, V and activations must be loaded 16 bytes at a time. (On gfx942 a row's
    # 64 lanes hold 8 bytes each where 32 hold 16.)
    if target != "gfx942":
        assert all(report.vector_loads for report in reports)
        check_linears([r for r in reports if r.kernel in LINEAR and r.dot_dtype != "f32"], target)
    if target == "sm_90":
        check_loops(reports)
    prefill = [r for r in reports if r.kernel == "paged_prefill_kernel" and "of 2048" in r.config]
    largest = LARGEST.get(target, "mma.sync")
    assert all(largest in r.matrix_instructions for r in prefill if r.dot_dtype != "f32")


def check_linears(reports: list[CompiledReport], target: str) -> None:
    """Weights are read 16 bytes at a time, and multiplied by the largest instruction."""
    for report in reports:
        num_tokens, num_bytes = int(report.config.split("T=")[1].split(",")[0]), 128 * 128
        if " int4" in report.config:
            num_bytes //= 2
        if num_tokens == 1:  # a tile of x is too small for such loads, so these are the weights'
            assert report.vector_loads * 16 * 32 * report.num_warps == report.num_stages * num_bytes, report.config
        else:
            assert report.matrix_instructions == (LARGEST.get(target, "mma.sync"),), report.config


# By the kernel and a beginning of the configuration: the most instructions of a warp, of Hopper, per key; or per column
# of 128 outputs and one token, where minima cost a second product per group. With one code at a time and tiles of 64 keys
# decode of quantised caches took 11.5, prefill 6.5 and 6.1.
MOST_INSTRUCTIONS = {
    ("paged_decode_kernel", "bf16 kv int8 32/8/128 page 16, 1 splits"): 7.1,
    ("paged_decode_kernel", "bf16 kv fp8_e4m3 32/8/128 page 16, 1 splits"): 7.1,
    ("paged_prefill_kernel", "bf16 32/8/128 page 16, chunks of 2048"): 5.3,
    ("paged_prefill_kernel", "fp16 32/8/128 page 64, chunks of 2048"): 4.8,
    ("quantized_linear_kernel", "bf16 int4 g32 minima, 4096 x 4096, T=1"): 3.2,
    ("quantized_linear_kernel", "bf16 int4 g128, 4096 x 4096, T=1"): 2.2,
    ("quantized_linear_kernel", "fp16 int8, 4096 x 4096, T=1"): 2.0,
    ("quantized_linear_kernel", "bf16 int8, 4096 x 4096, T=1"): 3.5,
    ("fp8_linear_kernel", "bf16 fp8, 4096 x 4096, T=1"): 1.4,
}


def check_loops(reports: list[CompiledReport]) -> None:
    found = {(r.kernel, r.config): r.instructions_per_key for r in reports}
    for loop, most in MOST_INSTRUCTIONS.items():
        assert found[loop] <= most, loop


@pytest.mark.full
@pytest.mark.parametrize("target", [name for name in TARGETS if name not in ("sm_90", "sm_86")])
def test_sample(target):
    check_reports(compile_beside([target], pattern_of(SAMPLE)), target)


@pytest.mark.full
def test_every_configuration():
    """For Hopper, where the workbook is measured."""
    reports = compile_beside(["sm_90"])
    check_reports(reports, "sm_90")
    configs = {config.name for configs in all_production_configs().values() for config in configs}
    assert {report.config for report in reports} == configs, "every configuration compiles something of its own"


@pytest.mark.full
def test_every_third_configuration():
    """For sm_86, whose code sm_80 and sm_89 have, and the least shared memory: heads of 256 fit."""
    names = [f"{module}: {c.name}" for module, configs in all_production_configs().items() for c in configs[::3]]
    check_reports(compile_beside(["sm_86"], f"{pattern_of([*SAMPLE, *names])}|16/1/256"), "sm_86")


def bad_tiles():
    """{what is bad: the problems that are seen}: a loop that is not pipelined; tiles whose registers spill, or that need
    more shared memory than there is; fp32 that Triton 3.7 gives to Blackwell's TF32 unit."""
    found, layer = {}, MetaLinear(torch.float32, 16)

    def note(what, target, launch, *args, **options):
        config = AotConfig(what, partial(launch, *args, **options), (*ATTENTION, *LINEAR))
        (report,) = compile_configs(target, [config])
        found[what] = report.problems()

    def prefill(heads, head_dim, chunk, tiles):
        args, _ = MetaLayer(torch.bfloat16, *heads, head_dim, page=64).inputs(4, 4 * chunk)
        paged_prefill(*args, meta(5, dtype=torch.int32), max_query_len=chunk, scale=0.1, tiles=Tiles(*tiles))

    note("too large", "sm_90", prefill, (32, 8), 128, 128, (128, 128, 4, 3))
    note("one stage", "sm_90", prefill, (32, 8), 128, 128, (128, 64, 8, 1))
    weight = layer.x(), layer.packed(4), meta(32, 4096, dtype=torch.float32)
    for what, tiles in (("wide fp32", LinearTiles(64, 16, 128, 4, 3)), ("fp32", None)):
        note(what, "sm_100", quantized_linear, *weight, num_splits=1, tiles=tiles)
    with pytest.raises(triton.runtime.errors.OutOfResources):
        note("32 keys of 256", "sm_86", prefill, (16, 1), 256, 2048, (64, 32, 8, 3))
    return found


@pytest.mark.full
def test_bad_tiles_are_noticed(compiling):
    problems = compiling.call(bad_tiles)
    assert any(problem.startswith("spills ") for problem in problems["too large"])
    assert any(problem.startswith("K/V buffers: 0") for problem in problems["one stage"])
    assert "no 16-byte asynchronous copies" in problems["one stage"]
    assert problems["wide fp32"] == ["fp32 products in TF32"]
    assert problems["fp32"] == []


@triton.jit
def two_products_kernel(x_ptr, y_ptr, out_ptr, num_k, BLOCK: tl.constexpr):
    """A product of 128 x 64 values, two parts of its sum in each turn."""
    offs_m, offs_n, offs_k = tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, BLOCK)
    acc = tl.zeros([128, 64], tl.float32)
    for k in range(0, num_k, 2 * BLOCK):
        x = tl.load(x_ptr + offs_m[:, None] * num_k + k + offs_k[None, :])
        acc = tl.dot(x, tl.load(y_ptr + offs_n[None, :] * num_k + k + offs_k[:, None]), acc)
        x = tl.load(x_ptr + offs_m[:, None] * num_k + k + BLOCK + offs_k[None, :])
        acc = tl.dot(x, tl.load(y_ptr + offs_n[None, :] * num_k + k + BLOCK + offs_k[:, None]), acc)
    tl.store(out_ptr + offs_m[:, None] * 64 + offs_n[None, :], acc)


def problems_of_two_products(targets):
    args = meta(128, 4096), meta(64, 4096), meta(128, 64, dtype=torch.float32), 4096
    launch = partial(two_products_kernel[(1,)], *args, BLOCK=64, num_warps=4, num_stages=3)
    reports = [compile_configs(target, [AotConfig(target, launch)]) for target in targets]
    return [report.problems() for (report,) in reports]


@pytest.mark.full
def test_a_miscompiled_sum_of_two_products_is_noticed(compiling):
    """Of Triton 3.7.1 on Blackwell; a later version may have it right, and then the guard can go."""
    of_hopper, of_blackwell = compiling.call(problems_of_two_products, ("sm_90", "sm_100"))
    assert of_hopper == []
    assert len(of_blackwell) == 1
    assert of_blackwell[0].endswith("before a product has ended (triton#10821)")


def step(num_seqs, table_width, num_tokens, offset):
    """Index tensors are slices of longer buffers, as in CUDA graphs: they start at any multiple of their item size."""

    def index(n, dtype=torch.int32):
        return meta(n + offset, dtype=dtype)[offset:]

    cache = meta(64, 8, 16, 128)
    tables, lens = meta(num_seqs, table_width, dtype=torch.int32), index(num_seqs)
    q, k, v = meta(num_tokens, 48, 128).split([32, 8, 8], dim=1)
    angles = meta(999, 64, dtype=torch.float32)
    rope_kv_write(q, k, v, angles, angles, index(num_tokens, torch.int64), index(num_tokens, torch.int64), cache, cache)
    paged_decode(q[:num_seqs], cache, cache, tables, lens, scale=0.1, num_splits=1)
    paged_decode(q[:num_seqs], cache, cache, tables, lens, scale=0.1, num_splits=1 + num_seqs)
    if table_width * 16 > 512:
        paged_decode(q[:num_seqs], cache, cache, tables, lens, scale=0.1)  # split by length
    several = meta(4 * num_seqs, 32, 128), cache, cache, tables, lens, index(num_seqs + 1)
    paged_decode(*several, max_query_len=4, scale=0.1, num_splits=1 + num_seqs)
    paged_prefill(q, cache, cache, tables, lens, index(num_seqs + 1), max_query_len=2048, scale=0.1)
    x = meta(num_tokens, 4096)
    rmsnorm_residual(x, x, meta(4096), 1e-5)
    silu_mul(meta(num_tokens, 8192))
    row, draws = partial(index, num_seqs, torch.float64), partial(index, 2 * num_seqs)
    weights = meta(num_seqs, 128_256, dtype=torch.float32)
    weigh(weights, index(num_seqs, torch.int64), index(num_seqs, torch.float32), index(num_seqs, torch.float32))
    draw_tokens(weights, row(), row(), row(), draws(torch.int64), draws(torch.float64))
    for num_inputs, num_outputs in ((4096, 6144), (14336, 4096)):  # layers of other sizes, too, share binaries
        layer = MetaLinear(torch.bfloat16, num_tokens, num_inputs=num_inputs, num_outputs=num_outputs)
        x, scales = layer.x(), meta(num_inputs // 128, num_outputs, dtype=torch.float32)
        quantized_linear(x, layer.packed(4), scales)
        quantized_linear(x, layer.packed(8), scales[0], num_splits=2)
        weight = meta(num_outputs, num_inputs, dtype=torch.float8_e4m3fn)
        fp8_linear(*quantise_tokens(x), weight, scales[0], dtype=torch.bfloat16)


@triton.jit
def storm_kernel(out_ptr, num_seqs, table_width):
    tl.store(out_ptr, num_seqs * table_width)


# Batch sizes, table widths, token counts, and offsets of index tensors.
STEPS = [(1, 16, 1, 0), (1, 16, 17, 0), (2, 16, 64, 1), (16, 48, 128, 0), (17, 256, 33, 3), (256, 112, 4096, 4)]


def binaries_of_steps():
    """How many binaries of each kernel Triton would compile; runs in the process that compiles."""
    wanted = set()

    def note(*, key, fn, **others):
        wanted.add((fn.name, key))
        return True  # nothing is compiled

    triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_90"]))
    triton.knobs.runtime.jit_cache_hook = note
    try:
        for shape in STEPS:
            step(*shape)
            storm_kernel[(1,)](meta(1, dtype=torch.int32), *shape[:2])
    finally:
        triton.knobs.runtime.jit_cache_hook = None
    return Counter(name for name, _ in wanted)


def test_no_recompile_storm(compiling):
    """Batch sizes, table widths, token counts and unaligned index buffers all use one binary of each kernel.

    (paged_decode has four: results written directly, partial results in fp32 to merge, splits by length, and several
    tokens per sequence; the merge has three, for equal numbers of splits, for lengths and for tokens. The linear kernels
    have one for each width of a tile of tokens that occurs here, 8, 32 and 64, and of the one for weights there are two.)
    """
    assert compiling.call(binaries_of_steps) == dict.fromkeys(ELEMENTWISE | ATTENTION | LINEAR | AFTER_SPLITS, 1) | {
        "storm_kernel": 3,  # the negative control: num_seqs 1, a multiple of 16, anything else
        "paged_decode_kernel": 4,
        "merge_splits_kernel": 3,
        "quantized_linear_kernel": 2 * 3,
        "fp8_linear_kernel": 3,
        "quantise_tokens_kernel": 2,  # rows of 4,096 and of 14,336
    }


SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0040*/              @!P0 BRA 0x10 ;
        /*0050*/              @!P1 BRA 0x0 ;
        /*0060*/                   FADD R1, R1, R2 ;
        /*0070*/              @!P2 BRA 0x60 ;
        /*0090*/                   BRA 0x90 ;
"""


def test_matrix_loops():
    """The innermost loop with matrix instructions: not the one around it, nor one without, nor the trap at the end."""
    (loop,) = matrix_loops(SASS)
    assert (loop[0][:6], loop[-1], loop_instructions(SASS)) == ("LDGSTS", "@!P0 BRA 0x10", 3)
    assert loop_instructions(SASS.replace("HMMA", "HADD2")) == 0
    assert loop_instructions(SASS.replace("FADD R1", "HGMMA.64x64x16.F32 R1")) == 2


def test_the_command_line():
    command = [sys.executable, "-m", "tests.kernels.aot", "--target", "sm_80", "--kernel", "^silu_mul: fp16"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "sm_80, silu_mul_kernel, fp16 1536\n    is_streaming False, " in result.stdout


TTGIR = """
    %q = tt.load %q_ptr : tensor<64x64x!tt.ptr<bf16>, #a> loc(#1)
    %k0 = ttg.async_copy_global_to_local %p, %b : tensor<64x64x!tt.ptr<bf16>, #a> -> <64x64xbf16> loc(#1)
    %v0 = ttg.async_copy_global_to_local %p, %b : tensor<64x64x!tt.ptr<bf16>, #a> -> <64x64xbf16> loc(#1)
    %r = scf.for %i = %lo to %hi step %c iter_args(%x = %y) -> (i32)  : i32 {
      %s = tt.dot %q, %k : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32> loc(#1)
      %k1 = ttg.async_copy_global_to_local %p, %b : tensor<64x64x!tt.ptr<bf16>, #a> -> <64x64xbf16> loc(#1)
      %v1 = ttg.async_copy_global_to_local %p, %b : tensor<64x64x!tt.ptr<bf16>, #a> -> <64x64xbf16> loc(#1)
    } loc(#1)
"""


def test_kv_buffer_depth():
    """Two copies before the loop for two inside it: one tile of K and one of V under way."""
    assert kv_buffer_depth("") == 0
    assert kv_buffer_depth(TTGIR) == 1
    copy_k, copy_v = TTGIR.splitlines()[2:4]
    assert kv_buffer_depth(TTGIR.replace(copy_k, "\n".join([copy_k, copy_v, copy_k]))) == 2
    assert kv_buffer_depth(TTGIR.replace(copy_v, "")) == 0, "K alone is not enough"
    assert kv_buffer_depth(TTGIR + TTGIR.replace(copy_k, "")) == 0, "the worst loop counts"


PRODUCTS = """
    ttng.tc_gen5_mma %x, %y, %acc, %true, %true, %bar[%true] {is_async} : !ttg.memdesc<64x64xbf16> loc(#1)
    ttng.tc_gen5_mma %x, %y, %scores, %true, %true, %bar_1[%true] {is_async} : !ttg.memdesc<64x64xbf16> loc(#1)
    %r:2 = scf.for %i = %lo to %hi step %c iter_args(%old = %bar_1, %phase = %c0) -> (i64, i32)  : i32 {
      ttng.wait_barrier %old, %phase deps %x, %y : !ttg.memdesc<1xi64> loc(#1)
      %s = ttng.tmem_load %acc : !ttg.memdesc<64x64xf32> -> tensor<64x64xf32> loc(#1)
      %new = ttg.memdesc_index %barriers[%phase] : !ttg.memdesc<2xi64> -> !ttg.memdesc<1xi64> loc(#1)
      ttng.tc_gen5_mma %x, %y, %acc, %true, %true, %new[%true] {is_async} : !ttg.memdesc<64x64xbf16> loc(#1)
      scf.yield %new, %phase : !ttg.memdesc<1xi64>, i32 loc(#1)
    } loc(#1)
    ttng.wait_barrier %r#0, %r#1 deps %x, %y : !ttg.memdesc<1xi64> loc(#1)
    %out = ttng.tmem_load %acc : !ttg.memdesc<64x64xf32> -> tensor<64x64xf32> loc(#1)
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("wait_barrier %old", "wait_barrier %other", ["%acc"] * 2),  # in the first turn, and in the second
        ("wait_barrier %r#0", "wait_barrier %bar_1", ["%acc"]),
        ("iter_args(%old = %bar_1", "iter_args(%old = %bar", []),
        ("iter_args(%old = %bar_1", "iter_args(%old = %other", ["%acc"]),
        ("scf.yield %new", "scf.yield %old", ["%acc"] * 2),  # in the second turn, and at the end
        ("{is_async}", "", []),
        ("tmem_load %acc", "tmem_load %scores", []),
        (
            "%acc : !ttg.memdesc<64x64xf32> -> tensor<64x64xf32> loc(#1)\n      %new",
            "%scores : loc(#1)\n      %new",
            [],
        ),
    ],
)
def test_early_reads(old, new, expected):
    """A wait counts for its product and for earlier ones; a loop's argument is the barrier of the turn before."""
    assert early_reads(PRODUCTS.replace(old, new) if old else PRODUCTS) == expected
