"""What the compiler makes of every production kernel, for GPUs that this machine need not have.

By default three configurations are compiled for one target; `--full` compiles all for sm_90, a third for sm_86 and a
sample (`SAMPLE`: 13) for the others (`python -m tests.kernels.aot --target sm_100` compiles everything for
another). Compiling takes processes of their own: caches must be empty.
"""

import re
import subprocess
import sys
from collections import Counter

import pytest
import torch

from ptx_emulator import CompilingProcess
from ptx_emulator.compiled_code import matrix_loops
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
from tests.kernels.aot import CompiledReport, compile_beside, compile_configs
from tests.kernels.assembly import kv_buffer_depth, loop_instructions
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
from twophase_kernels.silu_mul import silu_mul

pytest.importorskip("triton", reason="not run here: no triton")

# One 16-bit and one fp8 configuration of each attention kernel, one of each way to store weights, one of the others.
SAMPLE = {
    "paged_decode": (
        "bf16 32/8/128 page 16, 8 splits",
        "bf16 kv fp8_e4m3 32/8/128 page 16, split by length",
        "bf16 32/8/128 page 16, 8 splits, 5 tokens",
    ),
    "paged_prefill": ("bf16 32/8/128 page 16, chunks of 2048", "bf16 kv fp8_e4m3 32/8/128 page 16, chunks of 2048"),
    "rope_kv_write": ("bf16 32/8/128 page 64 kv int8",),
    "rmsnorm_residual": ("bf16 4096 with residual",),
    "silu_mul": ("bf16 14336",),
    "sampling": ("128256",),
    "quantized_linear": ("bf16 int4 g32 minima, 4096 x 4096, T=1", "bf16 int8, 4096 x 4096, T=16, bias"),
    "fp8_linear": ("bf16 fp8, 4096 x 4096, T=32, 2 splits", "bf16 tokens of 4096"),
}
SAMPLE_PATTERN = "|".join(f"^{module}: {name}$" for module, names in SAMPLE.items() for name in names)
ATTENTION = {"paged_decode_kernel", "paged_prefill_kernel"}
ELEMENTWISE = {
    "rope_kv_write_kernel", "rmsnorm_residual_kernel", "silu_mul_kernel", "quantise_tokens_kernel", "draw_kernel"
}  # fmt: skip
LINEAR = {"quantized_linear_kernel", "fp8_linear_kernel"}
AFTER_SPLITS = {"merge_splits_kernel", "sum_splits_kernel"}
MATRIX = {
    "sm_80": {"mma.sync"},
    "sm_86": {"mma.sync"},
    "sm_89": {"mma.sync"},
    "sm_90": {"mma.sync", "wgmma"},
    "sm_100": {"mma.sync", "tcgen05"},
    "gfx942": {"v_mfma"},
}


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
    for report in reports:
        assert report.target == target
        assert report.is_streaming == (report.kernel in ATTENTION | LINEAR)
        assert set(report.matrix_instructions) <= MATRIX[target]
        assert report.registers <= (512 if target == "gfx942" else 255)
        assert report.shared_bytes <= TARGETS[target].shared_bytes
    # Masks, scales and indices may be narrow; K, V and activations must be loaded 16 bytes at a time. (On gfx942 a row's
    # 64 lanes hold 8 bytes each where 32 hold 16.)
    if target != "gfx942":
        assert all(report.vector_loads for report in reports)
    # Two codes at a time: 128 keys of a quantised cache for at most 900 instructions of a warp. Before it were 1,470.
    if target == "sm_90":
        loops = [
            r.loop_instructions
            for r in reports
            if "paged_decode" in r.kernel and " kv " in r.config and "tokens" not in r.config
        ]
        assert loops
        assert max(loops) <= 900
        # Tiles of 128 x 128: with 64 keys it was 6.5 instructions of a warp per key, and 6.1 with pages of 64.
        long_chunks = {r.config: r for r in reports if "32/8/128" in r.config and "of 2048" in r.config}
        for config, most in (("bf16 32/8/128 page 16", 5.3), ("fp16 32/8/128 page 64", 4.8)):
            report = long_chunks.get(f"{config}, chunks of 2048")
            assert report is None or report.instructions_per_key <= most
        assert any(report.block_n == 128 for report in long_chunks.values())
    check_linears([r for r in reports if r.kernel in LINEAR], target)
    # 64 rows or more reach Hopper's and Blackwell's larger instructions; prefill in 16 bits has them.
    prefill = [r for r in reports if r.kernel == "paged_prefill_kernel" and "of 2048" in r.config]
    largest = {"sm_90": "wgmma", "sm_100": "tcgen05"}.get(target, min(MATRIX[target]))
    assert all(largest in r.matrix_instructions for r in prefill if r.dot_dtype != "f32")


def check_linears(reports: list[CompiledReport], target: str) -> None:
    """Weights are read 16 bytes at a time, multiplied by the largest instruction, and unpacked in few instructions."""
    on_nvidia = [report for report in reports if target != "gfx942" and report.dot_dtype != "f32"]
    for report in on_nvidia:
        num_tokens, num_bytes = int(report.config.split("T=")[1].split(",")[0]), 128 * 128
        if " int4" in report.config:
            num_bytes //= 2
        if num_tokens == 1:  # a tile of x is too small for such loads, so these are the weights'
            assert report.vector_loads * 16 * 32 * report.num_warps == report.num_stages * num_bytes, report.config
        else:
            largest = {"sm_90": "wgmma", "sm_100": "tcgen05"}.get(target, "mma.sync")
            assert report.matrix_instructions == (largest,), report.config
    # Of a warp, per column of 128 outputs (32 to a warp) and one token. Minima cost a second product per group.
    most = {"bf16 int4 g32 minima": 3.2, "bf16 int4 g128": 2.2, "fp16 int8": 2.0, "bf16 int8": 3.5, "bf16 fp8": 1.4}
    for report in on_nvidia if target == "sm_90" else []:
        weights, shape = report.config.split(", ", 1)
        if shape == "4096 x 4096, T=1" and weights in most:
            assert report.instructions_per_key <= most[weights], report.config


@pytest.mark.full
@pytest.mark.parametrize("target", [name for name in TARGETS if name not in ("sm_90", "sm_86")])
def test_sample(target):
    check_reports(compile_beside([target], SAMPLE_PATTERN), target)


@pytest.mark.full
def test_every_configuration():
    """For Hopper, where the workbook is measured."""
    reports = compile_beside(["sm_90"])
    check_reports(reports, "sm_90")
    configs = {config.name for configs in all_production_configs().values() for config in configs}
    assert {report.config for report in reports} == configs, "every configuration compiles something of its own"


@pytest.mark.full
def test_every_third_configuration():
    """For sm_86, whose code sm_80 and sm_89 have, and the least shared memory."""
    names = [re.escape(f"{m}: {c.name}") for m, configs in all_production_configs().items() for c in configs[::3]]
    check_reports(compile_beside(["sm_86"], "|".join([SAMPLE_PATTERN, *(f"^{name}$" for name in names)])), "sm_86")


def compiled(target, **launches):
    """{name: (shared bytes, problems)} of launches on tensors without storage; runs in the process that compiles."""
    found = {}
    for name, launch in launches.items():
        config = AotConfig(name, launch, ("paged_prefill_kernel", "paged_decode_kernel", "quantized_linear_kernel"))
        for report in compile_configs(target, [config]):
            found[name] = (report.shared_bytes, report.problems())
    return found


def prefill(dtype, heads, head_dim, chunk, tiles=None):
    args, _ = MetaLayer(dtype, *heads, head_dim, page=64).inputs(4, 4 * chunk)
    paged_prefill(*args, meta(5, dtype=torch.int32), max_query_len=chunk, scale=0.1, tiles=tiles)


def bad_tiles():
    """A loop that is not pipelined; tiles whose registers spill; fp32 that Triton 3.7 gives to Blackwell's TF32 unit."""
    layer = MetaLinear(torch.float32, 16)

    def linear(tiles):
        scales = meta(32, 4096, dtype=torch.float32)
        return lambda: quantized_linear(layer.x(), layer.packed(4), scales, num_splits=1, tiles=tiles)

    def launch(*tiles):
        return lambda: prefill(torch.bfloat16, (32, 8), 128, 128, Tiles(*tiles))

    hopper = compiled("sm_90", too_large=launch(128, 128, 4, 3), one_stage=launch(128, 64, 8, 1))
    wide = LinearTiles(64, 16, 128, 4, 3)
    return hopper | compiled("sm_100", wide_fp32=linear(wide), fp32=linear(None))


@pytest.mark.full
def test_bad_tiles_are_noticed(compiling):
    problems = {name: problems for name, (_, problems) in compiling.call(bad_tiles).items()}
    assert any(problem.startswith("spills ") for problem in problems["too_large"])
    assert any(problem.startswith("K/V buffers: 0") for problem in problems["one_stage"])
    assert "no 16-byte asynchronous copies" in problems["one_stage"]
    assert problems["wide_fp32"] == ["fp32 products in TF32"]
    assert problems["fp32"] == []


def large_heads():
    bf16, fp32 = torch.bfloat16, torch.float32
    decode_args, _ = MetaLayer(fp32, 16, 1, 256, page=64).inputs(4, 4)
    found = compiled(
        "sm_86",
        bf16_prefill=lambda: prefill(bf16, (16, 1), 256, 2048),
        fp32_prefill=lambda: prefill(fp32, (16, 1), 256, 2048),
        fp32_decode=lambda: paged_decode(*decode_args, scale=0.1, num_splits=1),
    )
    try:
        compiled("sm_86", keys_32=lambda: prefill(bf16, (16, 1), 256, 2048, Tiles(64, 32, 8, 3)))
    except triton.runtime.errors.OutOfResources as error:
        return found, error.required


@pytest.mark.full
def test_large_heads_fit_into_99_kib(compiling):
    """Heads of 256 on the GPUs with the least shared memory; 32 keys at a time do not fit, and that is noticed."""
    found, required = compiling.call(large_heads)
    assert required > TARGETS["sm_86"].shared_bytes
    assert len(found) == 3
    for name, (shared_bytes, problems) in found.items():
        assert shared_bytes <= TARGETS["sm_86"].shared_bytes, name
        assert not problems, (name, problems)


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
    for num_inputs, num_outputs in ((4096, 6144), (14336, 4096)):  # layers of other sizes, too, share binaries
        x, scales = meta(num_tokens, num_inputs), meta(num_inputs // 128, num_outputs, dtype=torch.float32)
        quantized_linear(x, meta(num_inputs // 128, num_outputs, 32, dtype=torch.int16), scales)
        quantized_linear(x, meta(num_inputs // 64, num_outputs, 32, dtype=torch.int16), scales[0], num_splits=2)
        weight = meta(num_outputs, num_inputs, dtype=torch.float8_e4m3fn)
        fp8_linear(*quantise_tokens(x), weight, scales[0], dtype=torch.bfloat16)


@triton.jit
def storm_kernel(out_ptr, num_seqs, table_width):
    tl.store(out_ptr, num_seqs * table_width)


STEPS = [
    (1, 16, 1, 0), (1, 16, 17, 0), (2, 16, 64, 1), (15, 48, 100, 2), (16, 48, 128, 0), (17, 256, 33, 3),
    (64, 16, 999, 5), (256, 112, 4096, 4),
]  # fmt: skip


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
    count = compiling.call(binaries_of_steps)
    assert count.pop("storm_kernel") == 3, "the negative control: num_seqs 1, a multiple of 16, anything else"
    assert count.pop("paged_decode_kernel") == 4
    assert count.pop("merge_splits_kernel") == 3
    assert count.pop("quantized_linear_kernel") == 2 * 3
    assert count.pop("fp8_linear_kernel") == 3
    assert count.pop("quantise_tokens_kernel") == 2, "rows of 4,096 and of 14,336"
    assert count.pop("sum_splits_kernel") == 1
    assert count == dict.fromkeys(ELEMENTWISE - {"quantise_tokens_kernel"} | {"paged_prefill_kernel"}, 1)


SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;                  /* 0x00000a0000017a02 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;     /* 0x0000000004027fae */
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, R8 ;         /* 0x000000060408723c */
        /*0030*/                   ISETP.GE.AND P0, PT, R0, R3, PT ;       /* 0x000000030000720c */
        /*0040*/              @!P0 BRA 0x10 ;                              /* 0xffffffc000008947 */
        /*0050*/              @!P1 BRA 0x0 ;                               /* 0xffffffa000009947 */
        /*0060*/                   FADD R1, R1, R2 ;                       /* 0x0000000201017221 */
        /*0070*/              @!P2 BRA 0x60 ;                              /* 0xfffffff00000a947 */
        /*0080*/                   EXIT ;                                  /* 0x000000000000794d */
        /*0090*/                   BRA 0x90 ;                              /* 0xfffffff000007947 */
"""


def test_matrix_loops():
    """The innermost loop with matrix instructions: not the one around it, nor one without, nor the trap at the end."""
    (loop,) = matrix_loops(SASS)
    assert loop[0].startswith("LDGSTS")
    assert loop[-1] == "@!P0 BRA 0x10"
    assert loop_instructions(SASS) == len(loop) == 4
    assert loop_instructions(SASS.replace("HMMA.16816.F32", "HGMMA.64x64x16.F32")) == 4
    assert loop_instructions(SASS.replace("HMMA", "HADD2")) == 0
    two = SASS.replace("FADD R1", "HMMA.16816.F32 R1")
    assert [len(loop) for loop in matrix_loops(two)] == [4, 2]
    assert loop_instructions(two) == 2


QUICK = "^silu_mul: fp16|^paged_decode: bf16 32/8/128 page 16, 8 splits$|^quantized_linear: bf16 int4 g32 minima, 4096 x 4096, T=1$"


def test_the_command_line():
    command = [sys.executable, "-m", "tests.kernels.aot", "--target", "sm_80", "--kernel", QUICK]
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
    assert kv_buffer_depth(TTGIR.replace("tt.dot", "tt.add")) == 0, "a loop without products does not count"
    assert kv_buffer_depth(TTGIR + TTGIR.replace(copy_k, "")) == 0, "the worst loop counts"
