"""`bench engine`: turns and tables of made-up contenders, then everything for real on a tiny model."""

import json
import re
import sys

import pytest

from tests.tools.bench.peers import fakes
from twophase_tools.bench.engine import EngineReport, Result, Workload, take_turns
from twophase_tools.bench.peers import process
from twophase_tools.bench.peers.process import PeerError

WORKLOAD = Workload("made up", ((1, 2), (3,)), (2, 3))


class MadeUp(process.PeerProcess):
    """Writes its name into `log` for each real run; fails in run `fails_in`."""

    def __init__(self, name, log, fails_in=None):
        self.name, self.log, self.fails_in = name, log, fails_in

    def run(self, prompts, output_lens):
        if self.log.count(self.name) == self.fails_in:
            raise PeerError("failed: no more")
        if output_lens == WORKLOAD.output_lens:
            self.log.append(self.name)
        return {"elapsed_s": 1.0}


def turns(*engines, repeats):
    """Which engine ran in each round, and which failed."""
    log = []
    peers = {name: MadeUp(name, log, *rest) for name, *rest in engines}
    runs, problems = take_turns(peers, WORKLOAD, repeats, lambda line: None)
    assert {name: len(of_name) for name, of_name in runs.items()} == {
        name: log.count(name) for name in peers if name not in problems
    }
    assert set(problems.values()) <= {"failed: no more"}
    return log, list(problems)


@pytest.mark.parametrize("fails_in", [0, 1])
def test_one_that_fails_is_out_and_the_others_go_on(fails_in):
    """In its warm-up or in a later round."""
    log, failed = turns(["ours"], ["a", fails_in], ["b"], repeats=3)
    assert failed == ["a"]
    assert log.count("a") == fails_in
    assert log[-2:] == ["ours", "b"]


def test_a_table_for_a_page():
    ours = Result("one", "fp32", "ours", None, 2, 1.0, 10.0, 0.5, None, 2, {"package": "1"})
    rival = Result("one", "fp32", "rival", None, 2, 4.0, 2.5, 0.5, 2**20, 1, {"package": "2"})
    report = EngineReport("folder", "cpu", "torch", 2, (ours, rival, Result("one", "fp32", "gone", "not run: late")))
    lines = [re.sub(" +", " ", line) for line in report.to_text().splitlines()]
    assert lines[:1] + lines[2:6] == [
        "| workload | weights | engine | tokens/s | TTFT p50 | peak memory | equal | |",
        "| one | fp32 | ours | 10.0 | 0.50 s | | 2 | |",
        "| one | fp32 | rival | 2.5 | 0.50 s | 1 MiB | 1 | |",
        "| one | fp32 | gone | | | | | not run: late |",
        "",
    ]
    assert lines[6:9] == ["folder on cpu, attention torch, 2 threads", " ours: package 1", " rival: package 2"]


def test_all_engines_on_a_tiny_model(twophase, tiny_folder, tmp_path, monkeypatch):
    """Ours and transformers' as they are, which write the same tokens; a stand-in for vLLM."""
    for name, value in fakes.install(tmp_path).items():
        if name != "PYTHONPATH":  # ours would find the stand-in for torch
            monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ("bench", "engine", "--quick", "--json", "--model", tiny_folder, "--device", "cpu", "--threads", 1)
    exit_code, out, err = twophase(*words, "--vllm-python", python)
    assert exit_code == 0, err
    results = json.loads(out)["results"]
    names = ["twophase", "transformers, one batch", "transformers, one by one", "vLLM"]
    found = {name: [each for each in results if each["workload"] == name] for name in ("single", "ragged")}
    assert [each["name"] for each in found["single"]] == [names[0], *names[2:]]
    assert [each["name"] for each in found["ragged"]] == names
    assert {each["problem"] for each in results} == {None}
    assert [each["num_equal"] for each in found["ragged"][:3]] == [3, 3, 3]
    assert all(each["peak_memory_bytes"] is None or each["peak_memory_bytes"] > 0 for each in results)
    assert "single, round 1 of 1, twophase: " in err
