"""`twophase simulate`: that it runs and adds up."""

import json

import pytest

H100 = ("simulate", "--hardware", "h100")


def test_a_named_gpu(twophase):
    code, out, _ = twophase(*H100, "--workload", "quick", "--requests", 50, "--replicas", 2)
    assert code == 0
    assert "50 of 50 completed" in out
    assert "60% of the peak" in out


def test_admission_by_name(twophase):
    """A pool of a few requests: who reserves the worst case keeps all that it lets in, and takes longer."""
    options = (*H100, "--workload", "benchmark-pressure", "--requests", 40, "--num-kv-blocks", 200)
    found = {}
    for name in ("optimistic", "reserve", "estimate"):
        code, out, _ = twophase(*options, "--admission", name, "--json")
        assert code == 0
        found[name] = json.loads(out)
    assert found["optimistic"]["num_preemptions"] > found["reserve"]["num_preemptions"] == 0
    assert found["optimistic"]["window_s"] < found["estimate"]["window_s"] < found["reserve"]["window_s"]


def test_json(twophase):
    options = ("simulate", "--hardware", "mi300x", "--model", "llama-3-70b", "--tensor-parallel", 8, "--requests", 40)
    code, out, _ = twophase(*options, "--rate", 5, "--json")
    result = json.loads(out)
    assert (code, result["num_requests"], result["cost_model"]["tensor_parallel"]) == (0, 40, 8)
    assert result["latencies"]["ttft"]["p50"] > 0
    assert json.loads(twophase(*options, "--rate", 5, "--json")[1]) == result


@pytest.mark.parametrize("router", ["round-robin", "least-tokens", "prefix", "length"])
def test_routers_by_name(twophase, router):
    options = (*H100, "--workload", "shared-prefix", "--requests", 60, "--rate", 20, "--replicas", 3)
    code, out, _ = twophase(*options, "--router", router, "--slo-ttft", 0.5, "--json")
    result = json.loads(out)
    assert (code, result["num_requests"]) == (0, 60)
    assert sum(engine["num_requests"] for engine in result["fleet"]["engines"]) == 60
    assert result["goodput"]["requests_per_s"] > 0
    assert result["num_cached_tokens"] > 0
    code, out, _ = twophase(*options, "--router", router)
    assert (code, "engine 2" in out, "times the mean number of tokens" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--hardware", "z80"), "a100, h100, h200, mi300x"),
        (("--model", "nobody's"), "llama-3-70b"),
        (("--model", "llama-3-70b"), "--tensor-parallel"),
        (("--tensor-parallel", 3), "key/value heads"),
        (("--replicas", 0), "--replicas"),
        (("--replicas", 10**9), "--replicas: must be at most"),
        (("--router", "x"), "least-outstanding"),
        (("--slo-ttft", 0), "positive number of seconds"),
        (("--rate", -1), "arrival rate"),
        (("--cv", "1e200"), "[1e-09, 1e+09]"),
        (("--requests", 0), "at least 1"),
        (("--admission", "reserved"), "optimistic, reserve, estimate"),
        (("--max-num-batched-tokens", 4), "max_num_batched_tokens"),
        (("--num-kv-blocks", 2), "KV blocks"),
        (("--num-kv-blocks", 10**13), "at most"),
        (("--workload", "nothing"), "no workload"),
        (("--policy", "ageing:patience_s=nan"), "policy 'ageing': patience_s must be a finite number"),
        (("--policy", "dynamic:batch_size=4,timeout_s=inf"), "timeout_s must be a finite number"),
    ],
)
def test_bad_options(twophase, options, complaint):
    code, out, err = twophase(*H100, *options)
    assert (code, out) == (2, "")
    assert complaint in err
