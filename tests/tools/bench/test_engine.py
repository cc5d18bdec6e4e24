"""`bench engine`: turns and tables of made-up contenders, then everything for real on a tiny model."""

import json
import sys

import pytest

from tests.tools.bench.peers import fakes
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase_tools.bench import engine
from twophase_tools.bench.engine import ENTRIES, HOPELESS, Workload, take_turns
from twophase_tools.bench.peers import process
from twophase_tools.bench.peers.process import PeerFailedError

WORKLOAD = Workload("made up", ((1, 2), (3,)), (2, 3))


class MadeUp(process.PeerProcess):
    """Takes the time it is told to, and writes its name into `log` for each real run; fails in run `fails_in`."""

    def __init__(self, name, elapsed_s, log, fails_in=None):
        self.name, self.elapsed_s, self.log, self.fails_in = name, elapsed_s, log, fails_in

    def run(self, prompts, output_lens):
        if self.log.count(self.name) == self.fails_in:
            raise PeerFailedError("no more")
        if output_lens == WORKLOAD.output_lens:
            self.log.append(self.name)
        return {"elapsed_s": self.elapsed_s}


def turns(*contenders, repeats):
    """Who ran in each round, and who failed."""
    log, absent = [], {}
    peers = {name: MadeUp(name, elapsed_s, log, *rest) for name, elapsed_s, *rest in contenders}
    ours = [name for name in peers if name.startswith("ours")]
    runs = take_turns(peers, ours, WORKLOAD, repeats, absent, lambda line: None)
    assert {name: len(of_name) for name, of_name in runs.items()} == {
        name: log.count(name) for name in peers if name not in absent
    }
    assert set(absent.values()) <= {"failed: no more"}
    return log, list(absent)


def test_a_hopeless_rival_runs_once_and_ours_always():
    log, _ = turns(("ours", 9.0), ("ours, 8 bits", 8.0), ("a", 1.0), ("b", 1.01 * HOPELESS), repeats=3)
    assert log == ["ours", "ours, 8 bits", "a", "b", "a", "ours, 8 bits", "ours", "ours", "ours, 8 bits", "a"]


@pytest.mark.parametrize("fails_in", [0, 1])
def test_a_rival_that_fails_is_out_and_the_others_go_on(fails_in):
    """In its warm-up or in a later round: with it no rival was faster, so the slow one is no longer hopeless."""
    log, failed = turns(("ours", 1.0), ("a", 1.0, fails_in), ("b", 9.0), repeats=3)
    assert failed == ["a"]
    assert log.count("a") == fails_in
    assert log[-2:] == ["ours", "b"]


def result(name, elapsed_s, is_ours=False, memory=2**20, equal=None):
    return engine.ContenderResult(name, is_ours, 2, elapsed_s, 10 / elapsed_s, 0.5, memory, equal, {"package": "1"})


def test_a_table_for_a_page():
    ours, rival = result("ours", 1.0, True, None), result("rival", 4.0, equal=1)
    results = (
        engine.WorkloadResult("one", "fp32", 1, 1, 2, (ours, rival), {"gone": "not run: no reason"}, 4.0),
        engine.WorkloadResult(
            "two", "fp32", 2, 3, 5, (ours, result("batch", 5.0), rival), {"gone": "failed: late"}, 4.0
        ),
        engine.WorkloadResult("one", "int4", 1, 1, 2, (result("ours, int4", 0.5, True),), {}, None),
    )
    report = engine.EngineReport(engine.record_machine(), "folder", "cpu", "torch", 2, results)
    lines = report.to_markdown().splitlines()
    assert lines[:8] == [
        "| weights |  | one: tokens/s | TTFT p50 | peak memory | two: tokens/s | TTFT p50 | peak memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| fp32 | ours | 10.0 | 0.50 s | not measured | 10.0 | 0.50 s | not measured |",
        "| fp32 | batch |  |  |  | 2.0 | 0.50 s | 1 MiB |",
        "| fp32 | rival | 2.5 | 0.50 s | 1 MiB | 2.5 | 0.50 s | 1 MiB |",
        "| fp32 | gone | not run |  |  | failed |  |  |",
        "| int4 | ours, int4 | 20.0 | 0.50 s | 1 MiB |  |  |  |",
        "",
    ]
    assert lines[8:10] == ["- gone: not run: no reason", "- gone: failed: late"]
    assert lines[11:13] == ["folder on cpu, attention torch, 2 threads", "  ours: package 1"]
    text = report.to_text().splitlines()
    assert text[0].startswith("4.00x  one, fp32: 1 requests, 1 prompt tokens, 2 generated; requests with our greedy")
    assert text[2].startswith("no ratio  one, int4")


def test_every_engine_has_its_rows():
    for weights, rows in ENTRIES.items():
        assert {entry.who for entry in rows} >= {"twophase", "vLLM", "llama.cpp"}, weights
        assert len({entry.name for entry in rows}) == len(rows)
        assert rows[0].who == "twophase"


def test_all_engines_on_a_tiny_model(twophase, tiny_folder, tmp_path, monkeypatch):  # noqa: F811
    """Ours and transformers' as they are, which write the same tokens; a stand-in for vLLM; and a llama.cpp that is not
    where it should be."""
    for name, value in fakes.install(tmp_path).items():
        if name != "PYTHONPATH":  # ours would find the stand-in for torch
            monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise ImportError('libllama.so is missing')")
    monkeypatch.setattr("twophase_tools.bench.peers.launches.gguf_weights.find", lambda *args: tmp_path)
    words = ("bench", "engine", "--quick", "--json", "--model", tiny_folder, "--device", "cpu", "--threads", 1)
    exit_code, out, err = twophase(*words, "--vllm-python", python, "--llama-cpp-python", python)
    assert exit_code == 0, err
    found = json.loads(out)
    single, ragged = found["results"]
    names = ["twophase", "transformers, one batch", "transformers, one by one", "vLLM"]
    assert [each["name"] for each in single["contenders"]] == [names[0], *names[2:]], single["absent"]
    assert [each["name"] for each in ragged["contenders"]] == names
    assert [each["num_equal"] for each in ragged["contenders"][:3]] == [None, 3, 3]
    assert all(each["peak_memory_bytes"] is None or each["peak_memory_bytes"] > 0 for each in ragged["contenders"])
    assert ragged["absent"] == {
        "llama.cpp": "not run: its interpreter cannot import it: ImportError: libllama.so is missing"
    }
    assert "single, round 1 of 1, twophase: " in err


@pytest.mark.full
def test_what_our_engine_cannot_be_rounded_to_is_a_row_that_failed(tiny_folder, monkeypatch):
    monkeypatch.setattr(process, "LAST_WORDS_S", 1)
    report = engine.bench_engine(str(tiny_folder), device="cpu", num_threads=1, quick=True, weights=("int4",))
    for each in report.results:
        assert each.ratio is None
        assert "groups" in each.absent["twophase, int4"]
        assert each.absent["vLLM, W4A16"].startswith("not run: give --vllm-python")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--markdown"), "choose one"),
        (("--vllm-python", "/no/python"), "vLLM must be a file that can be run"),
        (("--llama-cpp-python", "/no/python"), "llama.cpp must be a file that can be run"),
        (("--weights", "fp32,int3"), "got int3"),
        (("--weights", "fp32", "--dtype", "bfloat16"), "--dtype bfloat16 cannot be given"),
        (("--repeats", "0"), "at least 1"),
    ],
)
def test_options_that_cannot_be(twophase, words, said):  # noqa: F811
    exit_code, out, err = twophase("bench", "engine", *words)
    assert (exit_code, out) == (2, "")
    assert said in err
