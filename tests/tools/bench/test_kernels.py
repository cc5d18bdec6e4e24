"""`bench kernels`: the real cases at tiny sizes with a timer of our own; only the CUDA timer needs a GPU."""

import json
import warnings
from collections import Counter

import pytest
import torch

from twophase.core.errors import BackendUnavailableError
from twophase_kernels.work import Work
from twophase_tools.bench.kernel_cases import FULL, OURS, QUICK, SDPA_BACKENDS, CaseTable, KernelCase
from twophase_tools.bench.kernels import CaseResult, VariantResult, make_report, measure_case

CPU = torch.device("cpu")


def counting_timer(function):
    function()
    return 1e-3


@pytest.fixture(scope="module")
def report():
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    if torch.cuda.is_available():
        pytest.skip("not run here: kernels are compiled, and test_quick_on_a_gpu runs them")
    table = CaseTable(QUICK, torch.float32, CPU)
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):  # compiling takes a minute
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's compiler, on import: torch.jit is deprecated
        return make_report(table, counting_timer, torch.float32, CPU)


def test_every_kernel_is_there(report):
    kernels = Counter(result.kernel for result in report.results)
    assert kernels.keys() == {
        "paged_decode", "paged_prefill", "kv_write", "rope_kv_write", "rmsnorm_residual", "silu_mul"
    }  # fmt: skip
    assert all(result.ours.name == OURS and result.ours.elapsed_s is not None for result in report.results)


def test_rivals_agree_with_ours(report):
    compared = [v for result in report.results for v in result.variants if v.max_difference is not None]
    assert {v.name for v in compared} >= {"SDPA math", "FlexAttention", "torch eager"}
    assert all(v.max_difference < 1e-4 for v in compared), compared


def test_attention_meets_every_rival(report):
    for result in report.results:
        if result.kernel == "paged_prefill":
            assert {v.name for v in result.variants} == {OURS, *SDPA_BACKENDS, "FlexAttention"}


def test_what_cannot_run_says_why(report):
    not_run = [v for result in report.results for v in result.variants if v.elapsed_s is None]
    assert {"SDPA cudnn"} <= {v.name for v in not_run}  # there is none on a CPU
    assert all(v.not_run for v in not_run)


def test_the_full_table_is_the_one_of_the_design():
    labels = [f"{case.kernel} {case.label}" for case in CaseTable(FULL, torch.bfloat16, CPU)]
    for batch in (1, 8, 64):
        for keys in ("1,024", "8,192", "32,768"):
            assert f"paged_decode B={batch}, {keys} keys" in labels
    for tokens in ("1,024", "4,096", "16,384"):
        assert f"paged_prefill {tokens} tokens" in labels
    assert len(labels) == len(set(labels))


def test_bytes_of_a_decode():
    case = CaseTable(FULL, torch.bfloat16, CPU).decode(8, 8192)
    kv_bytes = 8 * 8192 * 8 * 128 * 2 * 2
    assert case.work == Work(kv_bytes + 8 * 32 * 128 * 2 * 2, 8 * 8192 * 32 * 128 * 4)


def test_json(report):
    found = json.loads(json.dumps(report.to_dict()))
    assert found["status"] == "measured"
    assert found.keys() == {
        "status", "machine", "dtype", "copy_bandwidth", "read_bandwidth", "matmul_rate", "gpu_state", "results"
    }  # fmt: skip
    assert found["results"][0]["variants"][0]["name"] == OURS


def test_text_has_a_line_per_contender(report):
    lines = report.to_text().splitlines()
    num_variants = sum(len(result.variants) for result in report.results)
    start = next(number for number, line in enumerate(lines) if line.startswith("case"))
    assert len(lines) - start - 1 == num_variants


def test_shares_and_ratios(report):
    variants = VariantResult(OURS, 2e-6), VariantResult("rival", 3e-6)
    result = CaseResult("k", "l", 4000, 8000, False, False, variants)
    assert report.share_of_bandwidth(result, result.ours) == pytest.approx(2e9 / report.copy_bandwidth)
    reading = CaseResult("k", "l", 4000, 8000, False, True, variants)
    assert report.share_of_bandwidth(reading, result.ours) == pytest.approx(2e9 / report.read_bandwidth)
    assert result.fastest_rival.name == "rival"
    ours, rival = report._lines(result)
    assert "1.00x" in ours
    assert "1.50x" in rival


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(report, tmp_path, ending):
    path = tmp_path / f"kernels.{ending}"
    report.plot(path)
    assert path.stat().st_size > 5000


def failing_case(make_variants):
    return KernelCase("k", "l", Work(1, 1), make_variants)


def test_a_rival_that_fails_is_reported_and_the_others_run():
    def variants():
        return {OURS: lambda: torch.zeros(2), "broken": lambda: 1 / 0, "fine": lambda: torch.ones(2)}

    ours, broken, fine = measure_case(failing_case(variants), counting_timer).variants
    assert (ours.elapsed_s, ours.max_difference) == (1e-3, None)
    assert (broken.elapsed_s, broken.not_run) == (None, "ZeroDivisionError: division by zero")
    assert fine.max_difference == 1.0


def test_a_time_of_zero_is_not_a_time(report):
    """The timer subtracts a baseline: what is as fast as nothing was not measured, and no rate is computed from it."""
    case = failing_case(lambda: {OURS: lambda: torch.zeros(2)})
    result = measure_case(case, lambda function: 0.0)
    assert (result.ours.elapsed_s, result.ours.not_run) == (None, "too short to be told from the noise of the timer")
    assert "not run" in next(iter(report._lines(result)))


def test_each_case_starts_with_a_compiler_that_has_seen_no_other(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: calls.append("reset"))
    for _ in range(2):
        measure_case(failing_case(lambda: {OURS: lambda: calls.append("ours")}), lambda function: 1e-3)
    assert calls == ["reset", "ours"] * 2


def test_rotating_rivals_return_the_queries_that_they_rotated():
    """Or a compiler would see that nobody needs them."""
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    variants = CaseTable(QUICK, torch.float32, CPU).rope_kv_write(8).make_variants()
    assert variants["torch eager"]().shape == (8, QUICK.num_heads, QUICK.head_dim)


def test_inputs_that_do_not_fit_are_reported():
    def variants():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    (ours,) = measure_case(failing_case(variants), counting_timer).variants
    assert ours.not_run == "OutOfMemoryError: CUDA out of memory"


@pytest.mark.gpu
def test_quick_on_a_gpu():
    from twophase_tools.bench.kernels import bench_kernels

    report = bench_kernels(quick=True)
    assert all(result.ours.elapsed_s is not None for result in report.results), report.to_text()


def test_interpreted_kernels_are_not_timed(monkeypatch):
    from twophase_tools.bench.kernels import bench_kernels

    if torch.cuda.is_available():
        pytest.skip("not run here: about machines without a GPU")
    with pytest.raises(BackendUnavailableError, match="TRITON_INTERPRET"):
        bench_kernels()
