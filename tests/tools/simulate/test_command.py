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
