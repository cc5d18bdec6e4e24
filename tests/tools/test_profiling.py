"""`twophase profile`: the trace is valid, and its ranges lie in each other."""

import gzip
import json

import pytest

import twophase.engine.model_run as model_run_module
import twophase.engine.sampler as sampler_module
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.profiling import StepShape, ranged, record, to_dict, to_text

PHASES = ("schedule", "draft", "run", "trace", "update", "report")  # of a step, in this order
INSIDE_RUN = {"model", "prepare", "forward", "attention", "attend", "mlp", "logits", "sample"}


@pytest.fixture(scope="module")
def llm(tiny_folder):
    return LLM(tiny_folder, device="cpu", num_kv_blocks=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def mixed(llm, tmp_path_factory):
    """The trace of two mixed steps, as JSON, and the averages by name."""
    file = tmp_path_factory.mktemp("profile") / "trace.json"
    averages = record(llm, StepShape("mixed", 3, (5, 9)), 2, file)
    return json.loads(file.read_text(encoding="utf-8")), averages


def test_every_phase_is_there_in_order_and_inside_its_step(mixed):
    """'Trace Event Format': a list of events; a span has a name, a start, a duration, a process and a thread."""
    events = [event for event in mixed[0]["traceEvents"] if event["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in events)
    assert any(event.get("cat") == "cpu_op" for event in events)
    ranges = sorted((event for event in events if event["cat"] == "user_annotation"), key=lambda event: event["ts"])
    steps = [event for event in ranges if event["name"] == "step"]
    assert len(steps) == 2
    for step in steps:
        inside = [e for e in ranges if step["ts"] <= e["ts"] < step["ts"] + step["dur"] and e is not step]
        assert {event["name"] for event in inside} == {*PHASES, *INSIDE_RUN}
        begun = list(dict.fromkeys(event["name"] for event in inside if event["name"] in PHASES))
        assert begun == list(PHASES)
        assert sum(event["name"] == "mlp" for event in inside) == 2  # layers


@pytest.mark.parametrize(("kind", "decodes", "prompts"), [("prefill", 0, 3), ("decode", 3, 0), ("mixed", 2, 1)])
def test_steps_are_of_their_kind(llm, tmp_path, kind, decodes, prompts):
    before = len(llm.engine.trace)
    record(llm, StepShape(kind, 3, (5,)), 2, tmp_path / "trace.json")
    profiled = llm.engine.trace[before:][-2:]
    assert [step.num_decodes for step in profiled] == [decodes, decodes]
    assert [len(step.chunks) - step.num_decodes for step in profiled] == [prompts, prompts]
    assert not llm.engine.has_unfinished_requests()


def test_nothing_stays_wrapped(llm):
    """The engine is as it was, and computes the same inside."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompt = {"prompt_token_ids": [5, 6, 7]}
    parts = (llm.engine, llm.runner, llm.model, llm.model.backend)
    before = [dict(vars(part)).keys() for part in parts]
    alone = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    with ranged(llm):
        assert "step" in vars(llm.engine)
        assert model_run_module.sample is not sampler_module.sample
        assert llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids == alone
    assert [dict(vars(part)).keys() for part in parts] == before
    assert model_run_module.sample is sampler_module.sample


def test_the_table_has_the_ranges_and_the_operators(mixed):
    times = to_dict(mixed[1])
    assert {"step", *PHASES, *INSIDE_RUN, "aten::mul"} <= times.keys()
    assert times["step"]["calls"] == 2
    assert times["step"]["cpu_us"] >= sum(times[phase]["cpu_us"] for phase in PHASES)
    assert times["forward"]["cpu_us"] > times["forward"]["self_cpu_us"] > 0
    assert "forward" in to_text(mixed[1])


# -- the command

ARGS = ("profile", "--device", "cpu", "--num-kv-blocks", 64, "--batch", 2, "--prompt-lens", 5, 7, "--steps", 1)


def test_the_command(twophase, tiny_folder, tmp_path):
    file = tmp_path / "trace.json.gz"
    exit_code, out, err = twophase(*ARGS, "--model", tiny_folder, "--output", file)
    assert exit_code == 0, err
    assert "attend" in out
    assert "ui.perfetto.dev" in err
    with gzip.open(file, "rt") as text:
        assert json.load(text)["traceEvents"]
    exit_code, out, _ = twophase(*ARGS, "--model", tiny_folder, "--output", file, "--json", "--step", "prefill")
    found = json.loads(out)
    assert (exit_code, found["step"]["calls"]) == (0, 1)


def test_a_step_that_the_engine_cannot_make_is_told(tiny_folder, tmp_path):
    """Blocks for one sequence alone: the others wait, and are never part of the step."""
    llm = LLM(
        tiny_folder, device="cpu", num_kv_blocks=10, max_model_len=150, max_num_seqs=4, enable_prefix_caching=False
    )
    with pytest.raises(ConfigError, match="raise --max-num-batched-tokens or --num-kv-blocks"):
        record(llm, StepShape("mixed", 4, (60,)), 2, tmp_path / "x.json")
    assert not llm.engine.has_unfinished_requests()
