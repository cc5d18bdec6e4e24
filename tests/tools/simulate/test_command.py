"""`twophase simulate`, and validation of a tiny model: that it runs and adds up, not how good it is here."""

import json

import pytest

from twophase.core.errors import ConfigError
from twophase.llm import LLM
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.simulate.calibrate import Calibration
from twophase_tools.simulate.rig import Rig
from twophase_tools.simulate.validate import Case, CaseResult, Row, validate


def test_a_named_gpu(twophase):
    code, out, _ = twophase("simulate", "--hardware", "h100", "--workload", "quick", "--requests", 50, "--replicas", 2)
    assert code == 0
    assert "50 requests" in out
    assert "60% of the peak" in out


def test_admission_by_name(twophase):
    """A pool of a few requests: who reserves the worst case keeps all that it lets in, and takes longer."""
    options = ("--hardware", "h100", "--workload", "benchmark-pressure", "--requests", 40, "--num-kv-blocks", 200)
    found = {}
    for name in ("optimistic", "reserve", "estimate"):
        code, out, _ = twophase("simulate", *options, "--admission", name, "--json")
        assert code == 0
        found[name] = json.loads(out)
        assert found[name]["num_requests"] == 40
    assert found["optimistic"]["num_preemptions"] > found["reserve"]["num_preemptions"] == 0
    assert found["optimistic"]["elapsed_s"] < found["estimate"]["elapsed_s"] < found["reserve"]["elapsed_s"]
    code, _, err = twophase("simulate", *options, "--admission", "reserved")
    assert code == 2
    assert "optimistic, reserve, estimate" in err


def test_json(twophase):
    options = ("--hardware", "mi300x", "--model", "llama-3-70b", "--tensor-parallel", 8, "--rate", 5, "--requests", 40)
    code, out, _ = twophase("simulate", *options, "--day", 0.5, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["num_requests"] == 40
    assert result["ttft_s"]["p50"] > 0
    assert result["cost_model"]["tensor_parallel"] == 8
    assert json.loads(twophase("simulate", *options, "--day", 0.5, "--json")[1]) == result


def test_measured_is_calibrated_once(twophase, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path))
    options = ("simulate", "--model", tiny_folder, "--workload", "quick", "--requests", 5, "--num-kv-blocks", 64)
    code, out, err = twophase(*options)
    assert code == 0
    assert "calibrating" in err
    assert "fitted to" in out
    assert "5 requests" in out
    code, _, err = twophase(*options)
    assert (code, err) == (0, "")
    stored = json.loads((tmp_path / "calibration.json").read_text())
    assert stored["limits"]["num_blocks"] > 64  # the engine's own: what one run asks for does not stick
    assert stored["key"]["device"] == "cpu"
    for name, other in (("device", "cuda"), ("limits", {}), ("model", "/another/folder/of/the/same/name")):
        changed = stored | {"key": stored["key"] | {name: other}}
        (tmp_path / "calibration.json").write_text(json.dumps(changed))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "twophase_tools.simulate.calibrate.calibrate", lambda rig: Calibration.from_json(json.dumps(stored))
            )
            assert "calibrating anew" in twophase(*options)[2], name
    (tmp_path / "calibration.json").write_text("{")
    code, _, err = twophase(*options)
    assert code == 2
    assert "not a calibration" in err


@pytest.mark.parametrize(
    "router", ["round-robin", "least-tokens", "prefix:weight=2", "hash", "length:limit_tokens=200"]
)
def test_routers_by_name(twophase, router):
    options = ("--hardware", "h100", "--workload", "shared-prefix", "--requests", 60, "--rate", 20, "--replicas", 3)
    code, out, _ = twophase("simulate", *options, "--router", router, "--slo-ttft", 0.5, "--json")
    result = json.loads(out)
    assert (code, result["num_requests"]) == (0, 60)
    (fleet,) = result["fleets"]
    assert sum(engine["num_requests"] for engine in fleet["engines"]) == 60
    assert result["goodput_per_s"] > 0
    code, out, _ = twophase("simulate", *options, "--router", router)
    assert (code, "engine 2" in out, "times the mean number of tokens" in out) == (0, True, True)


def test_autoscaling(twophase):
    options = ("--hardware", "h100", "--workload", "chat", "--requests", 1500, "--rate", 40, "--json")
    scaling = ("--autoscale", "requests=4", "--max-replicas", 5, "--startup", 10)
    code, out, _ = twophase("simulate", *options, *scaling)
    (fleet,) = json.loads(out)["fleets"]
    assert code == 0
    assert 1 < len(fleet["engines"]) <= 5
    assert fleet["scaling"][0]["num_wanted"] > 1
    assert fleet["engines"][1]["ready_s"] == fleet["engines"][1]["start_s"] + 10


def test_a_shared_prefix_is_shared(twophase):
    """As in the engine: without it, prompts would take as long as all their tokens."""
    options = ("simulate", "--hardware", "h100", "--workload", "shared-prefix", "--requests", 40, "--json")
    code, out, _ = twophase(*options)
    assert code == 0
    assert json.loads(out)["num_cached_tokens"] > 0


def test_a_folder_has_its_own_context_limit(twophase, tiny_folder, tmp_path):
    longest = json.loads((tiny_folder / "config.json").read_text())["max_position_embeddings"]
    trace = tmp_path / "trace.csv"
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{longest},1\n")
    options = ("simulate", "--hardware", "h100", "--model", tiny_folder, "--trace", trace)
    code, _, err = twophase(*options)
    assert (code, f"max_model_len={longest}" in err) == (2, True), err
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{longest - 1},1\n")
    assert twophase(*options)[0] == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--hardware", "z80"), "a100, h100, h200, mi300x"),
        (("--hardware", "h100", "--model", "nobody's"), "llama-3-70b"),
        (("--hardware", "h100", "--model", "llama-3-70b"), "--tensor-parallel"),
        (("--hardware", "h100", "--tensor-parallel", 3), "key/value heads"),
        (("--hardware", "h100", "--replicas", 0), "--replicas"),
        (("--hardware", "h100", "--router", "x"), "least-outstanding"),
        (("--hardware", "h100", "--router", "prefix:weight=-1"), "from 0 to"),
        (("--hardware", "h100", "--autoscale", "kv=0.5"), "--max-replicas"),
        (("--hardware", "h100", "--autoscale", "disk=0.5", "--max-replicas", 3), "queue-age=SECONDS"),
        (("--hardware", "h100", "--autoscale", "kv=0.5", "--max-replicas", 3, "--replicas", 4), "least <= most"),
        (("--hardware", "h100", "--autoscale", "kv=0.5", "--max-replicas", 3, "--startup", -1), "startup_s"),
        (("--hardware", "h100", "--max-replicas", 3), "--max-replicas goes with --autoscale"),
        (("--hardware", "h100", "--startup", 3), "--startup goes with --autoscale"),
        (("--hardware", "h100", "--slo-ttft", 0), "positive number of seconds"),
        (("--plan", "/nowhere/plan.yaml"), "cannot be read"),
        (("--hardware", "h100", "--rate", -1), "arrival rate"),
        (("--hardware", "h100", "--requests", 0), "at least 1"),
        (("--hardware", "h100", "--max-num-batched-tokens", 4), "max_num_batched_tokens"),
        (("--hardware", "h100", "--num-kv-blocks", 2), "KV blocks"),
        (("--hardware", "h100", "--num-kv-blocks", 0), "num_kv_blocks must be a whole number >= 1"),
        (("--hardware", "h100", "--workload", "nothing"), "no workload"),
        (("--hardware", "h100", "--day", 0.5), "--rate"),
        (("--hardware", "h100", "--day", 7, "--rate", 1), "swing"),
        (("--hardware", "h100", "--trace", "x.csv", "--rate", 1), "--trace"),
        (("--hardware", "h100", "--validate"), "--validate"),
        (("--hardware", "h100", "--cv", "1e200"), "[1e-09, 1e+09]"),
        (("--hardware", "h100", "--cv", "1e-200"), "[1e-09, 1e+09]"),
        (("--hardware", "h100", "--rate", "1e-300"), "[1e-09, 1e+09]"),
        (("--hardware", "h100", "--num-kv-blocks", 10**13), "at most"),
        (("--hardware", "h100", "--replicas", 10**9), "--replicas: must be at most"),
        pytest.param(
            ("--hardware", "h100", "--policy", "chunked:max_tokens=nan"),
            "policy 'chunked': max_tokens must be a whole number",
            marks=pytest.mark.unchecked_types,
        ),
        pytest.param(
            ("--hardware", "h100", "--policy", "static:batch_size=nan"),
            "must be a whole number >= 1, got nan",
            marks=pytest.mark.unchecked_types,
        ),
        pytest.param(
            ("--hardware", "h100", "--policy", "static:batch_size=1.5"),
            "must be a whole number >= 1, got 1.5",
            marks=pytest.mark.unchecked_types,
        ),
        (
            ("--hardware", "h100", "--policy", "priority:patience_s=nan"),
            "policy 'priority': patience_s must be a finite number",
        ),
        (("--hardware", "h100", "--policy", "dynamic:batch_size=4,timeout_s=inf"), "timeout_s must be a finite number"),
    ],
)
def test_bad_options(twophase, options, complaint):
    code, out, err = twophase("simulate", *options)
    assert (code, out) == (2, "")
    assert complaint in err


def test_validation_adds_up(tiny_folder):
    llm = LLM(tiny_folder, num_kv_blocks=64, skip_tokenizer_init=True)
    cases = (Case("over", 2.0, UniformLengths(4, 30), UniformLengths(2, 6), 1),)
    report = validate(Rig(llm), cases, seconds_per_case=0.05)
    assert [row.metric for row in report.rows] == [
        *(f"{name} p{percent}" for name in ("TTFT", "TPOT") for percent in (50, 90, 99)),
        "throughput",
    ]
    assert all(row.predicted > 0 and row.measured > 0 for row in report.rows)
    assert len(report.calibration.round_times_s) == 2
    assert "median error" in report.to_text()
    assert json.loads(json.dumps(report.to_dict()))["median_error"] == report.median_error


def test_reasons():
    row = Row("c", "TTFT p99", "s", 2.0, 1.0)
    assert row.error == 1.0
    slow = CaseResult("c", 0.9, 1.0, 50, (row,), step_error=0.3)
    assert "faster than when it was calibrated" in slow.reason(row)
    assert "a p99 of 50 requests" in slow.reason(row)
    exact = CaseResult("c", 0.9, 1.0, 500, (row,), step_error=0.01)
    assert "near saturation" in exact.reason(row)


def test_a_rig_is_refused(tiny_folder, monkeypatch):
    import torch

    llm = LLM(tiny_folder, num_kv_blocks=64, skip_tokenizer_init=True)
    llm.engine.add_request("a", {"prompt_token_ids": [1, 2]})
    with pytest.raises(ConfigError, match="idle"):
        Rig(llm)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ConfigError, match="one thread"):
        Rig(llm, cpu_time=True)
