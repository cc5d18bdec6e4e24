"""`twophase bench ...` from the command line."""

import json

import pytest
import torch

from tests.tools.cli.conftest import run_cli, twophase  # noqa: F401  (a fixture)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")
def test_kernels_without_cuda_makes_up_nothing(twophase):  # noqa: F811
    assert twophase("bench", "kernels") == (0, "not run here: needs CUDA\n", "")
    exit_code, out, _ = twophase("bench", "kernels", "--json")
    found = json.loads(out)
    assert (exit_code, found["status"], found["reason"]) == (0, "not run here", "needs CUDA")
    assert found.keys() == {"status", "reason", "machine"}


class Report:
    """Of which only the printing counts."""

    def __init__(self, *problems):
        self.problems = problems

    def to_text(self):
        return "a table"

    def to_dict(self):
        return {"problems": self.problems}

    def save(self, folder):
        return folder / "date-gpu.json"


@pytest.mark.parametrize(("problems", "exit_code"), [((), 0), (("rope: torch.compile: something else",), 1)])
def test_a_dry_run_fails_if_anything_differs(twophase, monkeypatch, problems, exit_code):  # noqa: F811
    monkeypatch.setattr("twophase_tools.bench.kernels.dry_run", lambda: Report(*problems))
    err = "".join(f"problem: {problem}\n" for problem in problems)
    assert twophase("bench", "kernels", "--dry-run") == (exit_code, "a table\n", err)
    assert twophase("bench", "kernels", "--dry-run", "--json")[0] == exit_code


@pytest.mark.parametrize("problems", [(), ("wrong",)])
def test_results_are_written_even_if_something_is_wrong(twophase, monkeypatch, tmp_path, problems):  # noqa: F811
    monkeypatch.setattr("twophase_tools.bench.kernels.why_not_here", lambda: None)
    monkeypatch.setattr("twophase_tools.bench.kernels.bench_kernels", lambda quick, say: Report(*problems))
    exit_code, out, err = twophase("bench", "kernels", "--results", tmp_path)
    assert (exit_code, out) == (len(problems), "a table\n")
    assert err.startswith(f"wrote {tmp_path / 'date-gpu.json'}\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")
def test_no_results_without_cuda(twophase, tmp_path):  # noqa: F811
    exit_code, out, err = twophase("bench", "kernels", "--results", tmp_path)
    assert (exit_code, out) == (2, "")
    assert "bench kernels needs CUDA" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [("--results", "."), ("--quick",), ("--plot", "x.png")])
def test_a_dry_run_has_no_times_to_show(twophase, option):  # noqa: F811
    exit_code, _, err = twophase("bench", "kernels", "--dry-run", *option)
    assert exit_code == 2
    assert f"leave out {option[0]}" in err


@pytest.mark.full
def test_a_dry_run_as_users_start_it():
    done = run_cli("bench", "kernels", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "paged_prefill" in done.stdout


def test_a_plot_of_unknown_format_is_refused_before_measuring(twophase):  # noqa: F811
    exit_code, _, err = twophase("bench", "kernels", "--plot", "picture.docx")
    assert exit_code == 2
    assert ".png" in err


@pytest.mark.parametrize("as_json", [True, False])
def test_scheduling(twophase, as_json):  # noqa: F811
    exit_code, out, _ = twophase("bench", "scheduling", "--quick", *["--json"] * as_json)
    assert exit_code == 0
    if as_json:
        assert [timing["num_waiting"] for timing in json.loads(out)] == [0, 100]
    else:
        assert "256 decodes" in out


def test_engine_quick(twophase, tiny_folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("twophase_tools.bench.engine.peak_memory_bytes", lambda *args: None)
    exit_code, out, err = twophase(
        "bench", "engine", "--quick", "--json", "--model", tiny_folder, "--device", "cpu", "--threads", 1
    )
    assert exit_code == 0
    assert json.loads(out)["num_threads"] == 1
    assert "single, fp32: round 1 of 1, twophase" in err


def test_engine_as_a_table_for_a_page(twophase, tiny_folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("twophase_tools.bench.engine.peak_memory_bytes", lambda *args: None)
    exit_code, out, _ = twophase(
        *("bench", "engine", "--quick", "--markdown", "--model", tiny_folder, "--device", "cpu", "--weights", "bf16")
    )
    assert exit_code == 0
    assert out.startswith("| weights |  | single: tokens/s | TTFT p50 | peak memory | ragged: tokens/s |")
    assert "| bf16 | vLLM | not run |  |  | not run |  |  |" in out
    assert "- vLLM: not run: give --vllm-python" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--markdown"), "choose one"),
        (("--vllm-python", "/no/python"), "--vllm-python must name an interpreter, a file that can be run"),
        (("--llama-cpp-python", "/no/python"), "--llama-cpp-python must name an interpreter"),
        (("--weights", "fp32,int3"), "got int3"),
        (("--weights", "fp32", "--dtype", "bfloat16"), "--dtype bfloat16 cannot be given"),
        (("--peer-limit", "0"), "at least 1"),
    ],
)
def test_engine_options_that_cannot_be(twophase, words, said):  # noqa: F811
    exit_code, out, err = twophase("bench", "engine", *words)
    assert (exit_code, out) == (2, "")
    assert said in err
