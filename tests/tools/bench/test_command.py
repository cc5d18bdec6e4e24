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


@pytest.mark.parametrize(("problems", "exit_code"), [((), 0), (("rope: torch.compile: something else",), 1)])
def test_a_run_fails_if_anything_differs_and_is_written_all_the_same(
    twophase, monkeypatch, tmp_path, problems, exit_code
):
    monkeypatch.setattr("twophase_tools.bench.kernels.dry_run", lambda: Report(*problems))
    monkeypatch.setattr("twophase_tools.bench.machine.machine_text", lambda machine: "a machine")
    err = "".join(f"problem: {problem}\n" for problem in problems)
    assert twophase("bench", "kernels", "--dry-run") == (exit_code, "a table\na machine\n", err)
    code, out, _ = twophase("bench", "kernels", "--dry-run", "--json")
    assert (code, json.loads(out)["problems"], "cpu" in json.loads(out)["machine"]) == (exit_code, [*problems], True)
    described = json.loads(out)["machine"] | {"date_utc": "2026-11-26T10:00"}
    monkeypatch.setattr("twophase_tools.bench.machine.describe_machine", lambda: described)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr("twophase_tools.bench.kernels.bench_kernels", lambda quick, say: Report(*problems))
    code, _, told = twophase("bench", "kernels", "--results", tmp_path)
    file = tmp_path / "2026-11-26-nvidia-h100.json"
    assert (code, told) == (exit_code, f"wrote {file}\n{err}")
    assert json.loads(file.read_text()) == {"problems": [*problems], "machine": described}
