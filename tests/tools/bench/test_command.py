"""`twophase bench kernels` from the command line."""

import json

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")
def test_kernels_without_cuda_makes_up_nothing(twophase, tmp_path):
    assert twophase("bench", "kernels") == (0, "not run here: needs CUDA\n", "")
    exit_code, out, _ = twophase("bench", "kernels", "--json")
    found = json.loads(out)
    assert (exit_code, found["status"], found["reason"]) == (0, "not run here", "needs CUDA")
    exit_code, out, err = twophase("bench", "kernels", "--results", tmp_path)
    assert (exit_code, out) == (2, "")
    assert "bench kernels needs CUDA" in err
    assert list(tmp_path.iterdir()) == []


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
def test_a_run_fails_if_anything_differs_and_is_written_all_the_same(
    twophase,
    monkeypatch,
    tmp_path,
    problems,
    exit_code,
):
    monkeypatch.setattr("twophase_tools.bench.kernels.dry_run", lambda: Report(*problems))
    err = "".join(f"problem: {problem}\n" for problem in problems)
    assert twophase("bench", "kernels", "--dry-run") == (exit_code, "a table\n", err)
    assert twophase("bench", "kernels", "--dry-run", "--json")[0] == exit_code
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("twophase_tools.bench.kernels.bench_kernels", lambda quick, say: Report(*problems))
    found = twophase("bench", "kernels", "--results", tmp_path)
    assert found == (exit_code, "a table\n", f"wrote {tmp_path / 'date-gpu.json'}\n{err}")
