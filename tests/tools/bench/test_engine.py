"""`bench engine`: the arithmetic on made-up runs, then every part for real on a tiny model."""

import json

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.bench.contenders import CONTENDERS, Contender, Run, Setup
from twophase_tools.bench.engine import HOPELESS, bench_engine, resolve_setup, summarise, take_turns
from twophase_tools.bench.memory import MeasurementError, peak_memory_bytes
from twophase_tools.bench.workload import Workload, engine_workloads

WORKLOAD = Workload("made up", ((1, 2), (3,)), (2, 3))
TOKENS = ((7, 8), (9, 9, 9))


def made_up_run(elapsed_s, ttft_s=(1.0, 3.0), tokens=TOKENS):
    return Run(elapsed_s, ttft_s, tokens)


def test_summary_takes_medians_and_the_faster_rival():
    runs = {
        "ours": [made_up_run(t) for t in (9.0, 2.0, 1.0)],
        "slow": [made_up_run(7.0)],
        "fast": [made_up_run(t, tokens=((7, 8), (9, 9, 1))) for t in (5.0, 5.0, 50.0)],
    }
    result = summarise(WORKLOAD, runs, {"ours": 10, "slow": None, "fast": 20}, compare_tokens=True)
    assert (result.fastest_rival, result.ratio) == ("fast", 2.5)
    assert result.num_equal == {"slow": 2, "fast": 1}
    ours = result.contenders[0]
    assert (ours.elapsed_s, ours.num_runs, ours.tokens_per_s, ours.ttft_p50_s) == (2.0, 3, 2.5, 2.0)
    assert [contender.peak_memory_bytes for contender in result.contenders] == [10, None, 20]
    lines = list(result.to_lines())
    assert lines[0].startswith("2.50x  made up: 2 requests, 3 prompt tokens, 5 generated")
    assert "not measured" in lines[3]
    assert "1 of 2 equal" in lines[4]


def test_tokens_are_not_compared_where_rounding_decides():
    runs = {"ours": [made_up_run(1.0)], "rival": [made_up_run(1.0)]}
    assert summarise(WORKLOAD, runs, {"ours": None, "rival": None}, compare_tokens=False).num_equal == {}


class MadeUp(Contender):
    """Takes the time it is told to, and writes its name into `log` for each real run."""

    def __init__(self, name, elapsed_s, log):
        self.name, self.elapsed_s, self.log = name, elapsed_s, log

    def run(self, workload):
        if workload is WORKLOAD:
            self.log.append(self.name)
        return made_up_run(self.elapsed_s)

    def _generate(self, workload, start_s):
        raise NotImplementedError


def turns(*contenders, repeats):
    log = []
    runs = take_turns([MadeUp(name, elapsed_s, log) for name, elapsed_s in contenders], WORKLOAD, repeats, log.append)
    assert {name: len(of_name) for name, of_name in runs.items()} == {name: log.count(name) for name, _ in contenders}
    return [entry for entry in log if ":" not in entry]


def test_contenders_take_turns():
    assert turns(("ours", 1.0), ("a", 2.0), ("b", 2.0), repeats=2) == ["ours", "a", "b", "ours", "a", "b"]


def test_a_hopeless_rival_runs_once_and_ours_always():
    slow = 1.01 * HOPELESS
    assert turns(("ours", 9.0), ("a", 1.0), ("b", slow), repeats=3) == ["ours", "a", "b", "ours", "a", "ours", "a"]


@pytest.fixture(scope="module")
def setup(tiny_folder):
    return resolve_setup(str(tiny_folder), "cpu", "auto", "auto", num_threads=1)


def test_setup_resolves_auto(setup, tiny_folder):
    assert setup[0] == Setup(str(tiny_folder), "cpu", "float32", "torch", 1)


def test_every_contender_generates_the_same_tokens(setup):
    setup, vocab_size = setup
    workload = engine_workloads(vocab_size, quick=True)["ragged"]
    runs = {name: contender(setup, workload).run(workload) for name, contender in CONTENDERS.items()}
    for name, run in runs.items():
        assert tuple(map(len, run.token_ids)) == workload.output_lens, name
        assert all(0 < ttft_s <= run.elapsed_s for ttft_s in run.ttft_s), name
    assert len({run.token_ids for run in runs.values()}) == 1


def test_end_of_text_is_ignored_by_all(setup, monkeypatch):
    """Every token counts as end-of-text in the models' own configurations, and nobody may stop."""
    setup, vocab_size = setup
    workload = engine_workloads(vocab_size, quick=True)["ragged"]
    for contender in CONTENDERS.values():
        loaded = contender(setup, workload)
        if contender.name == "twophase":
            monkeypatch.setattr(loaded.llm.engine, "_eos_token_ids", frozenset(range(vocab_size)))
        else:
            loaded.model.config.eos_token_id = list(range(vocab_size))
        assert tuple(map(len, loaded.run(workload).token_ids)) == workload.output_lens


def test_memory_of_a_child_process(setup):
    setup, vocab_size = setup
    peak = peak_memory_bytes("twophase", setup, "single", vocab_size, quick=True)
    # The tiny model is under 1 MiB; what a process takes besides is libraries at work.
    assert peak is None or 0 < peak < 1024**3


def test_a_child_that_fails_says_why(tmp_path):
    setup = Setup(str(tmp_path / "nowhere"), "cpu", "float32", "torch", 1)
    with pytest.raises(MeasurementError, match="nowhere"):
        peak_memory_bytes("twophase", setup, "single", 100, quick=True)


def test_quick_report(setup, tiny_folder, monkeypatch):
    monkeypatch.setattr("twophase_tools.bench.engine.peak_memory_bytes", lambda *args: 5 * 1024**2)
    said = []
    report = bench_engine(str(tiny_folder), device="cpu", num_threads=1, quick=True, say=said.append)
    found = json.loads(json.dumps(report.to_dict()))
    assert found.keys() == {"machine", "setup", "results", "notes"}
    single, ragged = found["results"]
    assert [contender["name"] for contender in single["contenders"]] == ["twophase", "transformers, one by one"]
    assert [contender["name"] for contender in ragged["contenders"]] == list(CONTENDERS)
    assert all(equal == result["num_requests"] for result in (single, ragged) for equal in result["num_equal"].values())
    ours = report.results[1].contenders[0]
    assert f"ragged: round 1 of 1, twophase: {ours.elapsed_s:.2f} s" in said
    text = report.to_text()
    assert text.startswith(f"{report.results[0].ratio:.2f}x  single:")
    assert "5 MiB" in text


@pytest.mark.parametrize("options", [{"repeats": 0}, {"num_threads": 0}])
def test_bad_options(tiny_folder, options):
    with pytest.raises(ConfigError, match="at least 1"):
        bench_engine(str(tiny_folder), device="cpu", **options)
