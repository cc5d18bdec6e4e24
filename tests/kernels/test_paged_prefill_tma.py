"""The warp-specialised prefill for Hopper, emulated, in the compiler's order and in others."""

from dataclasses import replace

import pytest
import torch

from ptx_emulator import CompilingProcess, emulated
from tests.kernels.aot import compile_configs
from tests.kernels.cases import assert_attention, attention_oracle, make_case
from tests.kernels.planting import KERNELS, noticed_emulated, noticing
from tests.kernels.production import BF16, FP16, FP32, AotConfig, meta
from twophase_kernels import paged_prefill_tma as kernels
from twophase_tools.bench.kernel_cases import QUICK, CaseTable
from twophase_tools.bench.kernel_variants import REFERENCE, difference

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

# Cached tokens or none; a chunk that ends inside a page, fills its last page, lies in a single one, or has no token.
SEQ_LENS, QUERY_LENS = [130, 40, 64, 5], [66, 0, 9, 5]


def check(module, heads=(6, 2), head_dim=64, dtype=FP16, seq_lens=(70, 5, 100), query_lens=(10, 5, 33)):
    case = make_case(list(seq_lens), list(query_lens), heads=heads, head_dim=head_dim, page=64, dtype=dtype)
    got = module.paged_prefill_tma(case.q, *case.cache, case.cu_query_lens, scale=case.scale, return_lse=True)
    assert_attention(got, attention_oracle(case))


def check_emulated(seed, heads, head_dim, dtype):
    with emulated("sm_90", seed=seed) as driver:
        check(kernels, heads, head_dim, dtype, SEQ_LENS, QUERY_LENS)
    machine = driver.launched["paged_prefill_tma_kernel"].machine
    assert machine.program.num_threads == 384, "a producer and two consumers"
    assert machine.executed["wgmma"] > 0


@pytest.mark.parametrize(
    ("seed", "heads", "head_dim", "dtype"),
    [
        (None, (2, 1), 64, BF16),
        *(pytest.param(seed, (2, 1), 64, BF16, marks=pytest.mark.full) for seed in (1, 2)),
        pytest.param(3, (2, 2), 64, FP16, marks=pytest.mark.full),
        pytest.param(4, (3, 1), 128, FP16, marks=pytest.mark.full),
        (5, (8, 1), 128, BF16),
    ],
    ids=str,
)
def test_against_the_oracle(compiling, seed, heads, head_dim, dtype):
    compiling.call(check_emulated, seed, heads, head_dim, dtype)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page": 16}, "got pages of 16, heads of 64, 2 to a KV head, torch.float16"),
        ({"head_dim": 32}, "heads of 32"),
        ({"heads": (33, 1)}, "33 to a KV head"),
        ({"dtype": FP32}, "torch.float32"),
        ({"kv_format": "int8"}, "int8 and uint8 .* need k_scale"),
    ],
    ids=str,
)
def test_refusals(options, message):
    case = make_case([9], [3], **{"page": 64, "dtype": FP16, **options})
    with pytest.raises(ValueError, match=message):
        kernels.paged_prefill_tma(case.q, *case.cache, case.cu_query_lens, scale=1.0)


def compiled():
    q, k, v = meta(2048, 32, 128), *(meta(64, 8, 64, 128) for _ in "kv")
    lengths = [meta(*shape, dtype=torch.int32) for shape in ((4, 64), (4,), (5,))]
    return compile_configs("sm_90", [AotConfig("", lambda: kernels.paged_prefill_tma(q, k, v, *lengths, scale=0.1))])


@pytest.mark.full
def test_machine_code():
    with CompilingProcess() as process:  # the driver stays
        (report,) = process.call(compiled)
    assert (report.registers, report.spill_bytes) == (168, 0), "65,536 for 384 threads; roles share them out anew"
    assert (report.matrix_instructions, report.async_copies) == (("wgmma",), ("tma",))


# -- faults in the source ---------------------------------------------------------------------------------------------

MUTANTS = {
    ("paged_prefill_tma",): [
        ("a later key", "offs_n[None, :] <= (row_positions", "offs_n[None, :] - 1 <= (row_positions", check),
        ("zeros before a page", " & (offs_n >= ahead)[None, :]", "", check),
        ("old sums as they were", "acc * rescale[:, None])", "acc)", check),
        ("heads of padding", " & (heads < G)", "", check),
        ("a short search", "tl.static_range(STEPS)", "tl.static_range(STEPS - 9)", check),
        ("rows from that of q's box", "offs_row = tokens * H", "offs_row = (chunk_start + first_token + offs_m // HEADS - chunk_start) * H", check),
    ],
}  # fmt: skip

test_mutants_are_killed = noticing(MUTANTS, KERNELS, noticed_emulated, "sm_90")


def check_contender():
    with emulated("sm_90"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CaseTable, "_has_tma", True)
        table = CaseTable(replace(QUICK, page=64), BF16, torch.device("cpu"), may_compile=False)
        case = table.attention(((70, 90), (6, 6)), "")
        makes = case.make_variants()
        got, want = (make() for name, make in makes.items() if name.startswith(("ours, by TMA", REFERENCE)))
        assert difference(got.results(got.call()), want.results(want.call())) < case.tolerance


@pytest.mark.full
def test_the_contender_of_the_benchmark(compiling):
    compiling.call(check_contender)
