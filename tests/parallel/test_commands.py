"""The commands that start ranks by themselves."""

import json
import subprocess
import sys

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)


def twophase(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "twophase_tools", *args], capture_output=True, text=True, timeout=120)


def test_generate_with_two_ranks_prints_what_one_process_prints(tiny_folder):  # noqa: F811
    args = ("generate", "a tiny prompt", "--model", str(tiny_folder), "--regex", "[a-z]{6}")
    alone, shared = twophase(*args), twophase(*args, "--tensor-parallel-size", "2")
    assert (shared.returncode, shared.stdout) == (0, alone.stdout)
    assert len(alone.stdout.strip()) == 6


@pytest.mark.full
def test_bench_reports_both_sides_and_what_is_saved(tiny_folder):  # noqa: F811
    done = twophase("bench", "tensor-parallel", "--quick", "--json", "--model", str(tiny_folder))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rank_kv_bytes_per_token"] * 2 == report["kv_bytes_per_token"]
    assert report["rank_weight_bytes"] < report["weight_bytes"]
    for case in report["cases"]:
        assert case["num_all_reduces"] == 4  # two layers
        assert case["bytes_per_token"] >= 4 * 48 * 4
        assert case["ratio"] > 0
        assert 0 < case["all_reduce_share"] < 1
