"""`twophase profile`: the trace is valid, its ranges lie in each other, and the table's phases sum to the step."""

import gzip
import json
import sys
from types import ModuleType

import pytest

import twophase.engine.model_run as model_run_module
import twophase.engine.sampler as sampler_module
from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.mutation import KillTable, Mutant
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.profiling import record as record_module
from twophase_tools.profiling import report as report_module
from twophase_tools.profiling import tree as tree_module
from twophase_tools.profiling.ranges import PHASES, ranged
from twophase_tools.profiling.steps import StepShape

INSIDE_RUN = {"model", "prepare", "forward", "attention", "attend", "mlp", "logits", "sample"}


@pytest.fixture(scope="module")
def llm(tiny_folder):  # noqa: F811
    return LLM(tiny_folder, device="cpu", num_kv_blocks=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def mixed(llm, tmp_path_factory):
    """The trace of two mixed steps, as JSON."""
    file = tmp_path_factory.mktemp("profile") / "trace.json"
    record_module.record(llm, StepShape("mixed", 3, (5, 9)), 2, file)
    return json.loads(file.read_text(encoding="utf-8"))


def ranges_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "user_annotation"]


def test_the_file_is_what_perfetto_reads(mixed):
    """'Trace Event Format': a list of events; a span has a name, a start, a duration, a process and a thread."""
    assert {event["ph"] for event in mixed["traceEvents"]} <= {"X", "M", "i", "s", "f"}
    for event in mixed["traceEvents"]:
        if event["ph"] == "X":
            assert isinstance(event["name"], str)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert {"pid", "tid"} <= event.keys()
    assert any(event.get("cat") == "cpu_op" for event in mixed["traceEvents"])


def test_every_phase_is_there_in_order_and_inside_its_step(mixed):
    ranges = sorted(ranges_of(mixed), key=lambda event: event["ts"])
    steps = [event for event in ranges if event["name"].startswith("step ")]
    assert len(steps) == 2
    first, second = (int(step["name"].split()[1]) for step in steps)
    assert second == first + 1
    for step in steps:
        inside = [e for e in ranges if step["ts"] <= e["ts"] < step["ts"] + step["dur"] and e is not step]
        assert {event["name"] for event in inside} == {*PHASES, *INSIDE_RUN}
        begun = list(dict.fromkeys(event["name"] for event in inside if event["name"] in PHASES))
        assert begun == list(PHASES)
        assert sum(event["name"] == "mlp" for event in inside) == 2  # layers


def test_ranges_nest(mixed):
    """Two ranges are apart, or one lies in the other; times are rounded to a nanosecond."""
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in ranges_of(mixed)]
    for start, end in spans:
        for other_start, other_end in spans:
            if start < other_start < end - 0.01:
                assert other_end <= end + 0.01


@pytest.mark.parametrize(("kind", "decodes", "prompts"), [("prefill", 0, 3), ("decode", 3, 0), ("mixed", 2, 1)])
def test_steps_are_of_their_kind(llm, tmp_path, kind, decodes, prompts):
    before = len(llm.engine.trace)
    record_module.record(llm, StepShape(kind, 3, (5,)), 2, tmp_path / "trace.json")
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


# -- the table, from a trace made by hand


def span(name, start, end, category="user_annotation", tid=1):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start}


def op(name, start, end, tid=1):
    return span(name, start, end, "cpu_op", tid)


BY_HAND = [
    span("first range", 0, 5),
    op("aten::empty", 6, 7),
    span("step 7", 10, 110),
    span("schedule", 10, 30),
    span("run", 30, 90),
    op("aten::mm", 40, 70),
    op("aten::copy_", 50, 60),
    span("sample", 70, 80),
    op("aten::max", 72, 76),
    op("aten::add", 95, 100),
    span("step 8", 200, 300),
    span("run", 210, 290),
    op("aten::mm", 220, 230),
    op("aten::mm", 230, 240),
    op("aten::mm", 20, 21, tid=2),
    span("gemm", 0, 4, "kernel", tid=9),
    span("gemm", 5, 7, "kernel", tid=9),
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {}},
]


def report_by_hand():
    trees = tree_module.trees_of(list(reversed(BY_HAND)))
    from twophase_tools.bench.machine import record_machine

    return report_module.ProfileReport.of(trees, StepShape(), "x.json", {}, record_machine())


def test_the_table_by_hand():
    """Per step, in microseconds: (calls, total, Python)."""
    report = report_by_hand()
    found = {" ".join(p.path): (p.calls, round(2e6 * p.total_s), round(2e6 * p.python_s)) for p in report.phases}
    assert found == {
        "step": (1, 200, 200 - 30 - 4 - 5 - 20),
        "step schedule": (0.5, 20, 20),
        "step run": (1, 140, 140 - 30 - 4 - 20),
        "step run sample": (0.5, 10, 6),
        "step run between": (0.5, 50, 20),
        "step between": (1, 40, 35),
    }
    assert report.step_s == pytest.approx(100e-6)
    assert [(each.name, each.calls, round(2e6 * each.own_s)) for each in report.operators] == [
        ("aten::mm", 1.5, 40),
        ("aten::copy_", 0.5, 10),
        ("aten::add", 0.5, 5),
        ("aten::max", 0.5, 4),
    ]
    assert report.kernels == (("gemm", pytest.approx(3e-6)),)
    assert "gemm" in report.to_text()


def check_sums(report):
    """The children of each range sum up to it."""
    of_path = {phase.path: phase for phase in report.phases}
    for path, phase in of_path.items():
        children = [child for child in report.phases if child.path[:-1] == path]
        if children and any(child.path[-1] == "between" for child in children):
            assert sum(child.python_s for child in children) <= phase.python_s + 1e-9
    top = [phase for phase in report.phases if len(phase.path) == 2]
    assert sum(phase.total_s for phase in top) == pytest.approx(report.step_s)
    assert sum(phase.share for phase in top) == pytest.approx(1)
    assert sum(phase.python_s for phase in top) == pytest.approx(report.python_s)


def test_phases_sum_to_the_step(mixed):
    from twophase_tools.bench.machine import record_machine

    trees = tree_module.trees_of(mixed["traceEvents"])
    report = report_module.ProfileReport.of(trees, StepShape("mixed", 3), "x", {}, record_machine())
    assert report.num_steps == 2
    check_sums(report)
    check_sums(report_by_hand())
    assert 0 < report.python_s < report.step_s
    assert sum(each.own_s for each in report.operators) == pytest.approx(report.step_s - report.python_s, rel=1e-3)


# -- the command

ARGS = ("profile", "--device", "cpu", "--num-kv-blocks", 64, "--batch", 2, "--prompt-lens", 5, 7, "--steps", 1)


def test_the_command(twophase, tiny_folder, tmp_path):  # noqa: F811
    file = tmp_path / "trace.json.gz"
    exit_code, out, err = twophase(*ARGS, "--model", tiny_folder, "--output", file)
    assert exit_code == 0, err
    assert out.startswith("1 decode steps of 2 requests, prompts of 5, 7 tokens")
    assert "Python outside of operators" in out
    with gzip.open(file, "rt") as text:
        assert json.load(text)["traceEvents"]
    exit_code, out, _ = twophase(*ARGS, "--model", tiny_folder, "--output", file, "--json", "--step", "prefill")
    found = json.loads(out)
    assert (exit_code, found["shape"]["kind"], found["num_steps"]) == (0, "prefill", 1)
    assert found["phases"][0]["path"] == ["step"]


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
        (("--output", "."), "--output"),
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
        record_module.record(llm, StepShape("mixed", 4, (60,)), 2, tmp_path / "x.json")
    assert not llm.engine.has_unfinished_requests()


def with_module(name):
    """The table's test on a mutated module of this package."""

    def check(module: ModuleType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[__name__], name, module)
            test_the_table_by_hand()

    return check


TREE, REPORT = "twophase_tools.profiling.tree", "twophase_tools.profiling.report"
MUTANTS = [
    Mutant("an inner operator counts twice", TREE, "if not self.is_range:\n            return self.duration_us", "if not self.children:\n            return self.duration_us"),
    Mutant("own time keeps that of the children", TREE, "return self.duration_us - math.fsum(child.duration_us for child in self.children)", "return self.duration_us"),
    Mutant("what touches lies inside", TREE, "node.start_us >= above[-1]", "node.start_us > above[-1]"),
    Mutant("equal starts in any order", TREE, '(event["ts"], -event["dur"])', '(event["ts"], event["dur"])'),
    Mutant("other threads count", TREE, ' and (e["pid"], e["tid"]) in threads', ""),
    Mutant("kernels overwrite each other", TREE, 'kernels_us.get(event["name"], 0.0) + event["dur"]', 'event["dur"]'),
    Mutant("sums instead of means", REPORT, "total / 1e6 / len(steps), total / whole_us", "total / 1e6, total / whole_us"),
    Mutant("between has the whole", REPORT, "left_us = node.duration_us - math.fsum(child.duration_us for child in inside)", "left_us = node.duration_us"),
    Mutant("Python is everything", REPORT, "(calls, total_us, total_us - operators_us)", "(calls, total_us, total_us)"),
    Mutant("shortest operators first", REPORT, "sums.items(), key=lambda each: -each[1][1]", "sums.items(), key=lambda each: each[1][1]"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants(mutant):
    KillTable.record(mutant, with_module("tree_module" if mutant.module == TREE else "report_module"))
