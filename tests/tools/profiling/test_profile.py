"""`twophase profile`: the trace is valid, its ranges lie in each other, and the table's rows sum to the step."""

import gzip
import json
from types import SimpleNamespace

import pytest

import twophase.engine.model_run as model_run_module
import twophase.engine.sampler as sampler_module
from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.mutation import KillTable, Mutant
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.profiling import report as report_module
from twophase_tools.profiling import steps as steps_module
from twophase_tools.profiling.ranges import PHASES, ranged
from twophase_tools.profiling.steps import StepShape

INSIDE_RUN = {"model", "prepare", "forward", "attention", "attend", "mlp", "logits", "sample"}


@pytest.fixture(scope="module")
def llm(tiny_folder):  # noqa: F811
    return LLM(tiny_folder, device="cpu", num_kv_blocks=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def mixed(llm, tmp_path_factory):
    """The trace of two mixed steps, as JSON, and the profiler's events."""
    file = tmp_path_factory.mktemp("profile") / "trace.json"
    events = steps_module.record(llm, StepShape("mixed", 3, (5, 9)), 2, file)
    return json.loads(file.read_text(encoding="utf-8")), events


def test_every_phase_is_there_in_order_and_inside_its_step(mixed):
    """'Trace Event Format': a list of events; a span has a name, a start, a duration, a process and a thread."""
    events = [event for event in mixed[0]["traceEvents"] if event["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in events)
    assert any(event.get("cat") == "cpu_op" for event in events)
    ranges = sorted((event for event in events if event["cat"] == "user_annotation"), key=lambda event: event["ts"])
    steps = [event for event in ranges if event["name"].startswith("step ")]
    first, second = (int(step["name"].split()[1]) for step in steps)
    assert second == first + 1
    for step in steps:
        inside = [e for e in ranges if step["ts"] <= e["ts"] < step["ts"] + step["dur"] and e is not step]
        assert {event["name"] for event in inside} == {*PHASES, *INSIDE_RUN}
        begun = list(dict.fromkeys(event["name"] for event in inside if event["name"] in PHASES))
        assert begun == list(PHASES)
        assert sum(event["name"] == "mlp" for event in inside) == 2  # layers


@pytest.mark.parametrize(("kind", "decodes", "prompts"), [("prefill", 0, 3), ("decode", 3, 0), ("mixed", 2, 1)])
def test_steps_are_of_their_kind(llm, tmp_path, kind, decodes, prompts):
    before = len(llm.engine.trace)
    steps_module.record(llm, StepShape(kind, 3, (5,)), 2, tmp_path / "trace.json")
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


# -- the table, from events made by hand


def event(name, elapsed_us, *inside, is_range=False, device="CPU"):
    return SimpleNamespace(
        name=name,
        is_user_annotation=is_range,
        device_type=SimpleNamespace(name=device),
        time_range=SimpleNamespace(elapsed_us=lambda: elapsed_us),
        cpu_children=list(inside),
    )


def span(name, elapsed_us, *inside):
    return event(name, elapsed_us, *inside, is_range=True)


def with_children(*roots):
    """All events, as the profiler lists them."""
    return [each for root in roots for each in (root, *with_children(*root.cpu_children))]


BY_HAND = with_children(
    span("first range", 5),
    event("aten::empty", 1),
    span(
        "step 7",
        100,
        span("schedule", 20),
        span("run", 60, event("aten::mm", 30, event("aten::copy_", 10)), span("sample", 10, event("aten::max", 4))),
        event("aten::add", 5),
    ),
    span("step 8", 100, span("run", 80, event("aten::mm", 10), event("aten::mm", 10)), span("report", 2)),
    event("gemm", 4, device="CUDA"),
    event("gemm", 2, device="CUDA"),
    event("run", 50, is_range=True, device="CUDA"),
)


def check_table(module):
    """Per step, in microseconds: (calls, total, Python)."""
    num_steps, step_s, ranges, operators, kernels = module.tables_of(BY_HAND)
    assert (num_steps, step_s) == (2, pytest.approx(100e-6))
    assert {row.name: (row.calls, round(2e6 * row.total_s), round(2e6 * row.python_s)) for row in ranges} == {
        "step": (1, 200, 200 - 30 - 4 - 5 - 20),
        "step/schedule": (0.5, 20, 20),
        "step/run": (1, 140, 140 - 30 - 4 - 20),
        "step/run/sample": (0.5, 10, 6),
        "step/report": (0.5, 2, 2),
    }
    assert [row.name for row in ranges][2:4] == ["step/run", "step/run/sample"]
    assert [(row.name, row.calls, round(2e6 * row.total_s), row.share) for row in operators] == [
        ("aten::mm", 1.5, 40, 0.2),
        ("aten::copy_", 0.5, 10, 0.05),
        ("aten::add", 0.5, 5, 0.025),
        ("aten::max", 0.5, 4, 0.02),
    ]
    assert [(row.name, row.calls, row.total_s) for row in kernels] == [("gemm", 1, pytest.approx(3e-6))]


def test_the_table_by_hand():
    check_table(report_module)


def test_the_table_of_real_steps_adds_up(mixed):
    num_steps, step_s, ranges, operators, _ = report_module.tables_of(mixed[1])
    whole = ranges[0]
    assert (num_steps, whole.name, whole.total_s, whole.share) == (2, "step", pytest.approx(step_s), pytest.approx(1))
    phases = [row for row in ranges if row.name.count("/") == 1]
    assert [row.name.partition("/")[2] for row in phases] == list(PHASES)
    assert sum(row.total_s for row in phases) <= step_s
    assert 0 < whole.python_s < step_s
    assert sum(row.total_s for row in operators) <= (step_s - whole.python_s) * 1.001


MUTANTS = [
    ("an inner operator counts twice", "    if not _is_range(event):\n        return _elapsed_us(event)\n    return math.fsum(", "    return (0 if _is_range(event) else _elapsed_us(event)) + math.fsum("),
    ("own time keeps that of the children", "_elapsed_us(event) - inside_us", "_elapsed_us(event)"),
    ("ranges on the GPU are kernels", 'if event.device_type.name != "CPU" and not event.is_user_annotation', 'if event.device_type.name != "CPU"'),
    ("sums instead of means", "us / 1e6 / len(steps), us / whole_us", "us / 1e6, us / whole_us"),
    ("Python is everything", "_elapsed_us(event) - _operators_us(event)", "_elapsed_us(event)"),
    ("shortest operators first", "key=lambda row: -row.total_s", "key=lambda row: row.total_s"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(name, report_module.__name__, old, new) for name, old, new in MUTANTS], ids=lambda m: m.name
)
def test_mutants(mutant):
    KillTable.record(mutant, check_table)


# -- the command

ARGS = ("profile", "--device", "cpu", "--num-kv-blocks", 64, "--batch", 2, "--prompt-lens", 5, 7, "--steps", 1)


def test_the_command(twophase, tiny_folder, tmp_path):  # noqa: F811
    file = tmp_path / "trace.json.gz"
    exit_code, out, err = twophase(*ARGS, "--model", tiny_folder, "--output", file)
    assert exit_code == 0, err
    assert out.startswith("1 decode steps of 2 requests, prompts of 5, 7 tokens")
    assert "ui.perfetto.dev" in err
    with gzip.open(file, "rt") as text:
        assert json.load(text)["traceEvents"]
    exit_code, out, _ = twophase(*ARGS, "--model", tiny_folder, "--output", file, "--json", "--step", "prefill")
    found = json.loads(out)
    assert (exit_code, found["num_steps"], found["ranges"][0]["name"]) == (0, 1, "step")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--step", "nonsense"), "'nonsense'"),
        (("--batch", 0), "--batch"),
        (("--step", "mixed", "--batch", 1), "at least 2 requests"),
        (("--prompt-lens", 0), "--prompt-lens"),
        (("--prompt-lens", 100_000), "100000"),
        (("--output", "x.txt"), ".json.gz"),
        (("--output", "no/such/folder/x.json"), "--output"),
        (("--num-kv-blocks", 0), "num_kv_blocks"),
        (("--steps", 0), "--steps"),
    ],
)
def test_what_cannot_be_is_refused(twophase, tiny_folder, tmp_path, options, message):  # noqa: F811
    words = ("profile", "--device", "cpu", "--model", tiny_folder, "--output", tmp_path / "x.json", *options)
    exit_code, out, err = twophase(*words)
    assert (exit_code, out) == (2, "")
    assert message in err


def test_a_step_that_the_engine_cannot_make_is_told(tiny_folder, tmp_path):  # noqa: F811
    """Blocks for one sequence alone: the others wait, and are never part of the step."""
    llm = LLM(
        tiny_folder, device="cpu", num_kv_blocks=10, max_model_len=150, max_num_seqs=4, enable_prefix_caching=False
    )
    with pytest.raises(ConfigError, match="raise --max-num-batched-tokens or --num-kv-blocks"):
        steps_module.record(llm, StepShape("mixed", 4, (60,)), 2, tmp_path / "x.json")
    assert not llm.engine.has_unfinished_requests()
