"""`bench engine`: the arithmetic on made-up runs, then every part for real on a tiny model."""

import json
import re
import sys

import pytest

from tests.tools.bench.peers import fakes
from twophase.core.errors import ConfigError
from twophase_tools.bench import entries
from twophase_tools.bench.contenders import CONTENDERS, Contender, PeerRecord, Run, Setup
from twophase_tools.bench.engine import (
    HOPELESS,
    bench_engine,
    count_equal,
    medians,
    resolve_setup,
    summarise,
    take_turns,
)
from twophase_tools.bench.engine_report import EngineReport
from twophase_tools.bench.entries import ENTRIES, Entry
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.memory import MeasurementError, peak_memory_bytes
from twophase_tools.bench.peers import process
from twophase_tools.bench.peers.process import PeerFailedError
from twophase_tools.bench.workload import Workload, engine_workloads

MIB = 1024**2
WORKLOAD = Workload("made up", ((1, 2), (3,)), (2, 3))
TOKENS = ((7, 8), (9, 9, 9))


def made_up_run(elapsed_s, ttft_s=(1.0, 3.0), tokens=TOKENS):
    return Run(elapsed_s, ttft_s, tokens)


def made_up_table(times, ours, absent=(), num_equal=(), weights="fp32", workload=WORKLOAD):
    """A table of contenders that took so long in each of their runs."""
    results = [
        medians(name, workload, [made_up_run(t) for t in of_name], 10 * MIB * i or None)
        for i, (name, of_name) in enumerate(times.items())
    ]
    return summarise(workload, weights, "torch", results, ours, dict(absent), dict(num_equal))


def test_summary_takes_medians_and_the_fastest_on_either_side():
    times = {"slow": [7.0], "ours": [9.0, 2.0, 1.0], "ours, 8 bits": [3.0], "fast": [5.0, 5.0, 50.0]}
    result = made_up_table(times, ["ours", "ours, 8 bits"], {"gone": "not run: no reason"}, {"slow": 2, "fast": 1})
    assert (result.fastest_rival, result.ratio) == ("fast", 2.5)
    assert [each.name for each in result.contenders] == ["ours", "ours, 8 bits", "slow", "fast"]
    ours = result.contenders[0]
    assert (ours.elapsed_s, ours.num_runs, ours.tokens_per_s, ours.ttft_p50_s) == (2.0, 3, 2.5, 2.0)
    lines = list(result.to_lines())
    assert lines[0] == ("2.50x  made up, fp32: 2 requests, 3 prompt tokens, 5 generated; the fastest rival is 'fast'")
    assert "10 MiB" in lines[2]
    assert "not measured" in lines[4]
    assert "2 of 2 equal" in lines[4]
    assert "1 of 2 equal" in lines[5]
    assert lines[6].split(maxsplit=1) == ["gone", "not run: no reason"]


@pytest.mark.parametrize("times", [{}, {"ours": [1.0]}, {"rival": [1.0]}])
def test_who_is_alone_has_no_ratio(times):
    result = made_up_table(times, ["ours"])
    assert result.ratio is None
    assert next(result.to_lines()).startswith("no ratio  made up, fp32: 2 requests")


def test_tokens_are_compared_with_our_first():
    other = ((7, 8), (9, 9, 1))
    runs = {"ours": [made_up_run(1.0)], "ours, 8 bits": [made_up_run(1.0, tokens=other)]}
    runs |= {"same": [made_up_run(1.0)], "rival": [made_up_run(1.0, tokens=other)]}
    assert count_equal(runs, ["ours", "ours, 8 bits"]) == {"same": 2, "rival": 1}
    assert count_equal({"rival": [made_up_run(1.0)]}, []) == {}


def test_a_table_for_a_page():
    one = Workload("one", ((1,),), (2,))
    report = EngineReport(
        record_machine(),
        "folder",
        "cpu",
        2,
        (
            made_up_table({"ours": [1.0], "rival": [4.0]}, ["ours"], {"gone": "not run: no reason"}, workload=one),
            made_up_table({"ours": [1.0], "batch": [5.0], "rival": [10.0]}, ["ours"], {"gone": "failed: late"}),
            made_up_table({"ours, int4": [0.5]}, ["ours, int4"], weights="int4", workload=one),
        ),
        (),
    )
    lines = report.to_markdown().splitlines()
    assert lines[:8] == [
        "| weights |  | one: tokens/s | TTFT p50 | peak memory | made up: tokens/s | TTFT p50 | peak memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| fp32 | ours | 2.0 | 2.00 s | not measured | 5.0 | 2.00 s | not measured |",
        "| fp32 | batch |  |  |  | 1.0 | 2.00 s | 10 MiB |",
        "| fp32 | rival | 0.5 | 2.00 s | 10 MiB | 0.5 | 2.00 s | 20 MiB |",
        "| fp32 | gone | not run |  |  | failed |  |  |",
        "| int4 | ours, int4 | 4.0 | 2.00 s | not measured |  |  |  |",
        "",
    ]
    assert lines[8:10] == ["- gone: not run: no reason", "- gone: failed: late"]
    assert lines[11] == "folder on cpu, attention torch, 2 threads"


class MadeUp(Contender):
    """Takes the time it is told to, and writes its name into `log` for each real run; fails in run `fails_in`."""

    def __init__(self, name, elapsed_s, log, fails_in=None):
        self.name, self.elapsed_s, self.log, self.fails_in = name, elapsed_s, log, fails_in

    def run(self, workload):
        if self.log.count(self.name) == self.fails_in:
            raise PeerFailedError("no more")
        if workload is WORKLOAD:
            self.log.append(self.name)
        return made_up_run(self.elapsed_s)


def turns(*contenders, repeats, failed=()):
    log = []
    made_up = {name: MadeUp(name, elapsed_s, log, *rest) for name, elapsed_s, *rest in contenders}
    ours = [name for name in made_up if name.startswith("ours")]
    runs, why = take_turns(made_up, ours, WORKLOAD, repeats, log.append)
    assert why == dict.fromkeys(failed, "failed: no more")
    assert {name: len(of_name) for name, of_name in runs.items()} == {
        name: log.count(name) for name, *_ in contenders if name not in failed
    }
    return [entry for entry in log if ":" not in entry]


def test_contenders_take_turns():
    assert turns(("ours", 1.0), ("a", 2.0), ("b", 2.0), repeats=2) == ["ours", "a", "b", "ours", "a", "b"]


def test_a_hopeless_rival_runs_once_and_ours_always():
    slow = 1.01 * HOPELESS
    log = turns(("ours", 9.0), ("ours, 8 bits", 8.0), ("a", 1.0), ("b", slow), repeats=3)
    assert log == ["ours", "ours, 8 bits", "a", "b", *["ours", "ours, 8 bits", "a"] * 2]


@pytest.mark.parametrize("fails_in", [0, 1])
def test_a_rival_that_fails_is_out_and_the_others_go_on(fails_in):
    """In its warm-up or in a later round: with it no rival was faster, so the slow one is no longer hopeless."""
    log = turns(("ours", 1.0), ("a", 1.0, fails_in), ("b", 9.0), repeats=3, failed=["a"])
    assert log == ["ours", *["a"] * fails_in, "b", "ours", *["b"] * (1 - fails_in), "ours", "b"]


def test_alone():
    assert turns(("ours", 1.0), repeats=2) == ["ours", "ours"]


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
    assert found.keys() == {"machine", "model", "device", "num_threads", "results", "notes"}
    single, ragged = found["results"]
    assert [contender["name"] for contender in single["contenders"]] == ["twophase", "transformers, one by one"]
    assert [contender["name"] for contender in ragged["contenders"]] == list(CONTENDERS)
    assert all(equal == result["num_requests"] for result in (single, ragged) for equal in result["num_equal"].values())
    assert single["absent"] == ragged["absent"]
    assert single["absent"] == {
        "vLLM": "not run: give --vllm-python, an interpreter that has it",
        "llama.cpp": "not run: give --llama-cpp-python, an interpreter that has it",
    }
    ours = report.results[1].contenders[0]
    assert f"ragged, fp32: round 1 of 1, twophase: {ours.elapsed_s:.2f} s" in said
    text = report.to_text()
    assert text.startswith(f"{report.results[0].ratio:.2f}x  single, fp32:")
    assert "5 MiB" in text


def test_with_peers(tiny_folder, tmp_path, monkeypatch):
    """One that runs (a stand-in), and one whose interpreter does not have it, with plain and with rounded weights."""
    for name, value in fakes.install(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process, "NOT_FOR_PEERS", ())
    monkeypatch.setattr("twophase_tools.bench.engine.peak_memory_bytes", lambda *args: None)
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise ImportError('libllama.so is missing')")
    monkeypatch.setattr("twophase_tools.bench.peers.contender.gguf_weights.find", lambda *args: tmp_path)
    pythons = {"vLLM": sys.executable, "llama.cpp": sys.executable}
    report = bench_engine(
        str(tiny_folder), device="cpu", num_threads=1, quick=True, weights=("bf16", "int8"), pythons=pythons
    )
    assert [(result.weights, result.name) for result in report.results] == [
        (weights, name) for weights in ("bf16", "int8") for name in ("single", "ragged")
    ]
    for result in report.results:
        peer = result.contenders[-1]
        assert peer.name == {"bf16": "vLLM", "int8": "vLLM, W8A8"}[result.weights]
        assert isinstance(peer.peer, PeerRecord)
        assert result.absent[{"bf16": "llama.cpp", "int8": "llama.cpp, Q8_0"}[result.weights]] == (
            "not run: its interpreter cannot import it: ImportError: libllama.so is missing"
        )
        assert result.num_equal == {}  # bf16 rounds differently everywhere
        assert result.weights == "bf16" or "transformers, int8" in result.absent
    text = report.to_text()
    assert "A peer that waits while others run uses at most" in text
    assert re.search(r"^  vLLM: .*Python 3\.", text, flags=re.MULTILINE)


def test_every_engine_has_its_row_for_all_weights():
    for weights, rows in ENTRIES.items():
        who = {entry.who.partition(",")[0] for entry in rows}
        assert who == {"twophase", "transformers", "vLLM", "llama.cpp"}, weights
        assert len({entry.name for entry in rows}) == len(rows)
        assert rows[0].is_ours


def test_what_a_model_cannot_be_rounded_to_is_not_run(setup, tmp_path, monkeypatch):
    """Only of quantised rows: a plain one that cannot be opened is the user's mistake, and is raised."""

    def refuse(setup, workload):
        raise ConfigError("groups do not divide it")

    setup, _ = setup
    monkeypatch.setitem(CONTENDERS, "twophase", refuse)
    peers = entries.Peers({}, tmp_path, 1.0)
    with pytest.raises(entries.NotRunError, match="groups do not divide it"):
        entries.open_contender(Entry("twophase", "bfloat16", "int4"), setup, WORKLOAD, peers)
    with pytest.raises(ConfigError):
        entries.open_contender(Entry("twophase", "bfloat16"), setup, WORKLOAD, peers)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repeats": 0}, "at least 1"),
        ({"num_threads": 0}, "at least 1"),
        ({"weights": ("fp32", "int3")}, "--weights must be names of fp32, .*; got int3"),
        ({"weights": ("fp32",), "dtype": "bfloat16"}, "--dtype bfloat16 cannot be given"),
    ],
)
def test_bad_options(tiny_folder, options, said):
    with pytest.raises(ConfigError, match=said):
        bench_engine(str(tiny_folder), device="cpu", **options)
