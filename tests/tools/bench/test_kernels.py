"""`bench kernels`: its dry run, and reports of times from a timer of our own; only the CUDA timer needs a GPU."""

import json
import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch

from twophase.core.errors import BackendUnavailableError
from twophase_tools.bench.cuda_timer import Flush
from twophase_tools.bench.kernel_cases import QUICK, CaseTable, KernelCase
from twophase_tools.bench.kernel_variants import OURS, REFERENCE, Variant, Work, difference
from twophase_tools.bench.kernels import (
    CaseResult,
    Roofs,
    VariantResult,
    bench_kernels,
    dry_run,
    make_report,
    measure_case,
)
from twophase_tools.bench.report import plain, save

CPU = torch.device("cpu")
INTERPRETED = CaseTable(QUICK, torch.float32, CPU, may_compile=False)


def counting_timer(function):
    function()
    return 1e-3


# The dry run, here as on any machine.


@pytest.fixture(scope="module")
def dry():
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what contenders warn of is recorded, not let through
        return dry_run()


def test_every_kernel_is_there(dry):
    assert Counter(result.kernel for result in dry.results).keys() == {
        "paged_decode", "paged_prefill", "rope_kv_write", "rmsnorm_residual", "silu_mul",
        "int4_linear", "int8_linear", "fp8_linear", "quantise_tokens",
    }  # fmt: skip
    assert all((result.ours.name, result.ours.status) == (OURS, "untimed") for result in dry.results)


def test_contenders_compute_the_same_and_nothing_breaks(dry):
    assert dry.problems == ()
    for result in dry.results:
        assert any(variant.difference is not None for variant in result.variants), result
    compared = {v.name.partition(",")[0] for result in dry.results for v in result.variants if v.difference is not None}
    assert compared >= {"SDPA math", "FlexAttention", "torch eager", "torch.compile", REFERENCE}


def test_a_dry_run_gives_no_times(dry):
    assert all(variant.elapsed_s is None for result in dry.results for variant in result.variants)
    if not torch.cuda.is_available():
        assert "not run here: needs CUDA" in dry.to_text()
    found = json.loads(json.dumps(dry.to_dict()))
    assert (found["status"], found["problems"], found["roofs"]) == ("dry run", [], None)


# Reports, from a timer that takes a millisecond for everything.


@pytest.fixture(scope="module")
def report():
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    if torch.cuda.is_available():
        pytest.skip("not run here: kernels are compiled, and test_quick_on_a_gpu runs them")
    cases = INTERPRETED.attention(((32, 32),), "32 tokens"), INTERPRETED.silu_mul(8)
    return make_report(cases, counting_timer, torch.float32, CPU)


def test_a_results_file_is_named_by_date_and_gpu_and_never_overwritten(report, tmp_path):
    first, second = (
        save(report.to_dict(), tmp_path / "new", "2026-11-26T10:00:00", "NVIDIA H100 (x)") for _ in range(2)
    )
    assert (first.name, second.name) == ("2026-11-26-nvidia-h100-x.json", "2026-11-26-nvidia-h100-x-2.json")
    found = json.loads(first.read_text())
    assert found == json.loads(json.dumps(report.to_dict()))
    assert found["status"] == "measured"
    assert found["results"][0]["variants"][0] == {
        "name": OURS, "status": "timed", "elapsed_s": 1e-3, "not_run": None, "difference": None
    }  # fmt: skip


def test_shares_and_ratios(report):
    variants = VariantResult(OURS, "timed", 2e-6), VariantResult("rival", "timed", 3e-6, difference=0.5)
    result = CaseResult("k", "l", 4000, 8000, 1.0, False, variants)
    ours, rival = result.rows(Roofs(4e9, 8e9, 1.0))
    assert (ours[4], ours[6], rival[4]) == ("1.00x", "50%", "1.50x")
    assert next(iter(replace(result, only_reads=True).rows(Roofs(4e9, 8e9, 1.0))))[6] == "25%"


# Contenders that do something else, break, or cannot run.


def case_of(answers, **options):
    """A case whose contenders give these answers: tensors, or functions that return them."""

    def maker(answer):
        call = answer if callable(answer) else lambda: answer
        return lambda: Variant(call, **options)

    return KernelCase("k", "l", Work(1, 1), lambda: {name: maker(answer) for name, answer in answers.items()}, 1e-3)


def measure(case, timer=counting_timer):
    return measure_case(case, timer)


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([[1.0, 2], [3, 5]]),
        torch.tensor([[1.0, 2]]),
        torch.tensor([[1.0, 2], [3, float("nan")]]),
        (torch.tensor([[1.0, 2], [3, 4]]),) * 2,
    ],
    ids=["another value", "another shape", "nan", "more results"],
)
def test_a_rival_that_does_other_work_is_not_timed(other):
    timed = []

    def timer(function):
        timed.append(function())
        return 1e-3

    found = measure(case_of({OURS: torch.tensor([[1.0, 2], [3, 4]]), "rival": other}), timer)
    assert len(timed) == 1
    assert (found.variants[1].status, found.variants[1].elapsed_s) == ("wrong", None)
    json.dumps(plain(found.variants[1].difference), allow_nan=False)
    (problem,) = found.problems
    assert problem == "k l: rival: not timed: it computes something else (allowed 1e-03)"


def test_a_case_that_compares_nothing_is_a_problem():
    found = measure(case_of({OURS: torch.ones(2)}), None)
    assert list(found.problems) == ["k l: nothing to compare with"]


def test_a_time_of_zero_is_not_a_time(report):
    """The timer subtracts a baseline: what is as fast as nothing was not measured, and no rate is computed from it."""
    result = measure(case_of({OURS: torch.zeros(2)}), lambda function: 0.0)
    assert (result.ours.elapsed_s, result.ours.status) == (None, "untimed")
    assert "too short to be told from the noise" in next(iter(result.rows(report.roofs)))[-1]


@pytest.mark.full  # it compiles C++
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", ["rope_kv_write", "rmsnorm_residual", "silu_mul", "prompt", "verify", "decode"])
def test_what_torch_compiles_is_compiled_whole_and_right(case):
    """On a CPU, where torch generates C++; the dry run leaves this out."""
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    if torch.cuda.is_available():
        pytest.skip("not run here: test_quick_on_a_gpu compiles for the GPU")
    table = CaseTable(QUICK, torch.float32, CPU)
    makers = {
        "rope_kv_write": lambda: table.rope_kv_write(8, "none"),
        "prompt": lambda: table.attention(((32, 32),), ""),
        "verify": lambda: table.attention(((5, 48),), ""),
        "decode": lambda: table.decode((48, 48), ""),
    }
    found = measure(makers[case]() if case in makers else getattr(table, case)(8))
    compiling = [v for v in found.variants if v.name.startswith(("torch.compile", "FlexAttention"))]
    assert [variant.status for variant in compiling] == ["timed"], compiling


# The timer.


def test_each_flush_follows_a_flush_of_the_other_buffer(monkeypatch):
    """With and without a call in between, so that both find none of their own buffer in the cache."""
    read = []
    flush = Flush(CPU, 64)
    assert [buffer.nbytes for buffer in flush.buffers] == [64, 64]
    monkeypatch.setattr(Flush, "read", lambda self, buffer: read.append(buffer.data_ptr()))
    first, second = (buffer.data_ptr() for buffer in flush.buffers)
    for _ in range(2):
        flush.around(lambda: read.append("call"))
    assert read == [first, "call", second] * 2
    assert first != second


@pytest.mark.gpu
def test_quick_on_a_gpu():
    report = bench_kernels(quick=True)
    assert report.problems == (), report.to_text()
    # At these sizes a time may drown in the noise, but whatever was timed took some.
    assert all(result.ours.status in ("timed", "untimed") for result in report.results), report.to_text()


def test_interpreted_kernels_are_not_timed():
    if torch.cuda.is_available():
        pytest.skip("not run here: about machines without a GPU")
    with pytest.raises(
        BackendUnavailableError, match="compiled for a GPU; here they are compiled for the CPU, because"
    ):
        bench_kernels()


def test_a_rival_that_fails_or_does_not_fit_is_reported_and_the_others_run():
    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    found = measure(case_of({OURS: torch.ones(2), "broken": lambda: 1 / 0, "fine": torch.ones(2)}))
    ours, broken, fine = found.variants
    assert (ours.status, ours.elapsed_s, ours.difference) == ("timed", 1e-3, None)
    assert (broken.status, broken.not_run) == ("unavailable", "not run: ZeroDivisionError: division by zero")
    assert (fine.status, fine.difference) == ("timed", 0.0)
    assert list(found.problems) == []
    found = measure(case_of({OURS: lambda: 1 / 0, "fine": torch.ones(2)}))
    assert list(found.problems) == [f"k l: {OURS}: not run: ZeroDivisionError: division by zero"]
    found = measure(KernelCase("k", "l", Work(1, 1), too_large, 1e-3))
    assert (found.ours.status, found.ours.not_run) == ("unavailable", "not run: OutOfMemoryError: CUDA out of memory")
    assert list(found.problems) == []


def test_how_far_two_answers_are_apart():
    """A single wrong row counts in full."""
    x = torch.randn(1000, 64)
    y = x.clone()
    y[700] = -y[700]
    zeros, eye = torch.zeros(2, 4), torch.eye(2, 4)
    assert difference((y,), (x,)) == pytest.approx(2.0)
    assert difference((eye,), (zeros,)) == float("inf")
    for same in (x, zeros, torch.zeros(0, 4)):
        assert difference((same,), (same,)) == 0.0
