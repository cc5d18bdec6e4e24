"""`twophase bench ...` from the command line."""

import json

import pytest
import torch

from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")
def test_kernels_without_cuda_makes_up_nothing(twophase):  # noqa: F811
    assert twophase("bench", "kernels") == (0, "not run here: needs CUDA\n", "")
    exit_code, out, _ = twophase("bench", "kernels", "--json")
    found = json.loads(out)
    assert (exit_code, found["status"], found["reason"]) == (0, "not run here", "needs CUDA")
    assert found.keys() == {"status", "reason", "machine"}


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
    assert json.loads(out)["setup"]["num_threads"] == 1
    assert "single: round 1 of 1, twophase" in err
