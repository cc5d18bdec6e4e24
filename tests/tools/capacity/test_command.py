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
    assert "by Little's law: 64.0 at once / " in out
    assert out.endswith("no warnings\n")


def test_the_text_divides_as_it_says(twophase, config_file):
    out = twophase("plan", config_file(max_num_seqs=64))[1]
    at_once, each_s, per_s = map(
        float, re.search(r"law: ([\d.]+) at once / ([\d.]+) s each = ([\d.]+) req", out).groups()
    )
    assert at_once / each_s == pytest.approx(per_s, rel=1e-3)


def test_warnings_say_where(twophase, config_file):
    path = config_file(chunk_size=9000, slo="{ttft_s: 0.001}")
    code, out, _ = twophase("plan", path)
    assert code == 0
    assert "warnings: 2" in out
    assert f"{path}:5: chunk_size" in out
    assert f"{path}:6: slo.ttft_s" in out
    path = config_file(hardware="{memory: 24 GB, flops_per_s: 165e12, bytes_per_s: 1e12}")
    # More places than the memory has room for, and nobody asked for them.
    assert f"{path} (by default): max_num_seqs" in twophase("plan", path)[1]


def test_what_does_not_fit_is_said_and_is_no_failure(twophase, config_file):
    code, out, _ = twophase("plan", config_file(model="llama-3-70b"))
    assert code == 0
    assert "none: not even one request fits" in out
    assert "does-not-fit" in out


def test_json(twophase, config_file):
    changes = {
        "slo": "{ttft_s: 5}",
        "tensor_parallel_size": 2,
        "kv_cache_dtype": "fp8_e4m3",
        "eviction": "{window: 512}",
    }
    code, out, _ = twophase("plan", config_file(**changes), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["kv_bytes_per_token"] == 2 * 32 * 8 * (128 + 4)
    assert found["memory_per_gpu"]["kv_bytes_per_token"] == found["kv_bytes_per_token"] // 2
    assert found["memory_per_gpu"]["num_blocks"] > 0
    assert found["times"]["at_rate"]["requests_per_s"] == 1
    assert found["is_measured"] is False
    assert found["assumptions"]["compute_efficiency"] == 0.6
    assert json.loads(twophase("plan", config_file(model="llama-3-70b"), "--json")[1])["times"]["alone"] is None


def test_json_of_warnings(twophase, config_file):
    found = json.loads(twophase("plan", config_file(chunk_size=9000, max_num_seqs=64), "--json")[1])
    assert [
        {key: warning[key] for key in ("name", "key", "value", "limit", "line")} for warning in found["warnings"]
    ] == [{"name": "chunk-beyond-budget", "key": "chunk_size", "value": 9000, "limit": 8192, "line": 5}]


def test_a_gpu_of_your_own(twophase, config_file):
    hardware = "{name: mine, memory: 24 GiB, flops_per_s: 165e12, bytes_per_s: 1.008e12}"
    code, out, _ = twophase("plan", config_file(hardware=hardware), "--json")
    assert code == 0
    assert json.loads(out)["hardware"]["memory_bytes"] == 24 * 2**30
    shared = hardware.replace("}", ", link_bytes_per_s: 32e9}")
    code, out, _ = twophase("plan", config_file(hardware=shared, tensor_parallel_size=2))
    assert code == 0
    assert "on 2 x mine" in out
    assert "bytes, 65,536 of them on each GPU" in out


def test_one_token_has_no_tpot(twophase, config_file):
    out = twophase("plan", config_file(workload="{rate: 1, prompt_tokens: 900, output_tokens: 1}"))[1]
    assert re.search(r"^alone .* ms +- ", out, re.MULTILINE)


def test_the_example_is_a_plan_without_warnings(twophase, tmp_path):
    code, out, err = twophase("plan", "--example")
    assert (code, out, err) == (0, EXAMPLE.read_text(encoding="utf-8"), "")
    (tmp_path / "example.yaml").write_text(out, encoding="utf-8")
    code, out, _ = twophase("plan", tmp_path / "example.yaml")
    assert code == 0
    assert "no warnings" in out
    assert "within the SLO" in out


def test_mistakes(twophase, config_file, tmp_path):
    path = config_file(max_num_seq=8)
    code, out, err = twophase("plan", path)
    assert (code, out) == (2, "")
    assert err == f"twophase: {path}:5: unknown key max_num_seq; did you mean max_num_seqs?\n"
    code, out, err = twophase("plan", tmp_path / "nowhere.yaml")
    assert (code, out) == (2, "")
    assert "cannot be read" in err


@pytest.mark.parametrize("words", [(), ("a.yaml", "--example"), ("a.yaml", "b.yaml")])
def test_wrong_arguments(twophase, words):
    code, out, err = twophase("plan", *words)
    assert (code, out) == (2, "")
    assert err.startswith("usage: twophase")
