"""`twophase plan`: what is printed, and exit codes."""

import json
import re

import pytest

from tests.tools.capacity.plans import text
from twophase_tools.capacity.config import EXAMPLE


@pytest.fixture
def config_file(tmp_path):
    def write(**changes):
        path = tmp_path / "plan.yaml"
        path.write_text(text(**changes), encoding="utf-8")
        return path

    return write


def test_a_plan(twophase, config_file):
    code, out, err = twophase("plan", config_file(gpu_memory_utilization=1, workspace="0 GB", max_num_seqs=64))
    assert (code, err) == (0, "")
    assert "memory                 80.00     74.51  100.0%" in out
    assert "- weights              16.06     14.96   20.1%" in out
    assert "K/V of a token 131,072 bytes; of a block 2,097,152" in out
    assert "     119  of 4,096 tokens, the context limit: each 256 blocks, 0.54 GB (0.50 GiB)" in out
    assert "not measured" in out
    assert "assumed: 60% of the peak FLOP/s" in out
    law = re.search(r"law: ([\d.]+) at once / ([\d.]+) s each = ([\d.]+) req", out)
    at_once, each_s, per_s = map(float, law.groups())
    assert (at_once, at_once / each_s) == (64, pytest.approx(per_s, rel=1e-3))
    assert out.endswith("no warnings\n")


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"model": "llama-3-70b"}, "does not fit: weights and workspace take 1"),
        ({"max_model_len": 2_000_000}, "a request of 2,000,000 tokens does not fit"),
        ({"workload": "{rate: 500, prompt_tokens: 1000, output_tokens: 250}"}, "overloaded: 500 requests/s arrive"),
        ({"slo": "{ttft_s: 0.001}"}, "an empty engine does not keep TTFT <= 0.001 s"),
        ({"slo": "{tpot_s: 0.013}", "workload": "{rate: 8, prompt_tokens: 1000, output_tokens: 250}"}, "at 8 requests/s"),
    ],
)  # fmt: skip
def test_warnings(twophase, config_file, changes, warning):
    code, out, _ = twophase("plan", config_file(**changes))
    assert code == 0, "a warning is no failure"
    assert "warnings: 1\n- " in out
    assert warning in out


def test_json(twophase, config_file):
    changes = {"slo": "{ttft_s: 5}", "tensor_parallel_size": 2, "kv_cache_dtype": "fp8_e4m3"}
    code, out, _ = twophase("plan", config_file(**changes), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["kv_bytes_per_token"] == 2 * 32 * 8 * (128 + 4)
    assert found["memory_per_gpu"]["kv_bytes_per_token"] == found["kv_bytes_per_token"] // 2
    assert found["times"]["at_rate"]["requests_per_s"] == 1
    assert (found["is_measured"], found["warnings"]) == (False, [])
    assert json.loads(twophase("plan", config_file(model="llama-3-70b"), "--json")[1])["times"]["alone"] is None


def test_one_token_has_no_tpot(twophase, config_file):
    out = twophase("plan", config_file(workload="{rate: 1, prompt_tokens: 900, output_tokens: 1}"))[1]
    assert re.search(r"^alone .* ms +- ", out, re.MULTILINE)


def test_the_example_is_a_plan_without_warnings(twophase, tmp_path):
    code, out, err = twophase("plan", "--example")
    assert (code, out, err) == (0, EXAMPLE.read_text(encoding="utf-8"), "")
    (tmp_path / "example.yaml").write_text(out, encoding="utf-8")
    code, out, _ = twophase("plan", tmp_path / "example.yaml")
    assert (code, "no warnings" in out, "within the SLO" in out) == (0, True, True)


def test_mistakes(twophase, config_file, tmp_path):
    path = config_file(max_num_seq=8)
    code, out, err = twophase("plan", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"twophase: {path}: unknown key max_num_seq;")
    code, _, err = twophase("plan", tmp_path / "nowhere.yaml")
    assert (code, "cannot be read" in err) == (2, True)
    for words in ((), ("a.yaml", "--example"), ("a.yaml", "b.yaml")):
        code, _, err = twophase("plan", *words)
        assert (code, err.startswith("usage: twophase")) == (2, True)
