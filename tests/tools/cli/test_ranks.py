"""Commands of several processes: refusals before any starts, and the exit code of all ranks together."""

import os
import subprocess
import sys
import time

import pytest

from tests.mutation import KillTable, Mutant
from tests.parallel.processes import is_running
from tests.tools.conftest import child_environment, run_cli
from twophase_tools.cli import ranks
from twophase_tools.launch import RankResult


def ended(*codes, said=""):
    return [RankResult(rank, code, "", f"{said}{rank}\n" if said else "") for rank, code in enumerate(codes)]


def check_exit_codes(module):
    """(what each rank ended with, what the command ends with)"""
    for codes, expected in [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((2, -15), 2),
        ((-15, 2), 2),  # rank 0 was ended because rank 1 refused first
        ((1, 2), 2),
        ((-9, -15), 1),
        ((1, -9), 1),
        ((0, -9), 1),
        ((None, None), 1),
        ((0, None), 1),
        ((141, 1), 141),
    ]:
        assert module.exit_code_of(ended(*codes)) == expected, codes


def test_exit_codes():
    check_exit_codes(ranks)


def test_what_is_said(capsys):
    ranks.exit_code_of(ended(-15, 2, -15, said="from rank "))
    assert capsys.readouterr().err == "from rank 1\n"
    ranks.exit_code_of(ended(141, 1, said="from rank "))
    assert capsys.readouterr().err == ""
    ranks.exit_code_of(ended(None, None))
    assert capsys.readouterr().err == "twophase: the ranks were killed.\n"
    ranks.exit_code_of(ended(-15, -9))
    assert capsys.readouterr().err == "twophase: rank 1 was killed by signal 9.\n"


MUTANTS = [
    Mutant("no exit code is success", "twophase_tools.cli.ranks", "any(code != 0 for code in codes)", "any(codes)"),
    Mutant(
        "rank 0 speaks for all", "twophase_tools.cli.ranks", "if EXIT_USAGE in codes:", "if codes[0] == EXIT_USAGE:"
    ),
    Mutant("a signal is an exit code", "twophase_tools.cli.ranks", "and codes[0] > 0:", "and codes[0]:"),
]


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant):
    KillTable.record(mutant, check_exit_codes)


def test_what_cannot_be_shared_is_refused_before_anything_starts(twophase, tiny_folder, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    code, out, err = twophase("generate", "x", "--tensor-parallel-size", 10, "--model", tiny_folder)
    assert (code, out) == (2, "")
    assert "at most 2 processes" in err
    assert len(err.splitlines()) == 1


def test_another_job_s_rank_is_no_matter_for_one_process(twophase, tiny_folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    options = ("generate", "hello there", "--model", tiny_folder, "--max-tokens", 3, "--json")
    assert twophase(*options)[0] == 0


def test_a_refusal_in_the_ranks_is_one_of_the_command(tiny_folder):
    """Found out in every rank at once; those that are slower are ended."""
    words = ("generate", "x", "--tensor-parallel-size", 2, "--device", "nowhere")
    done = run_cli(*words, "--model", tiny_folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "nowhere" in done.stderr


def test_a_killed_rank_is_a_failure(talkative_folder):
    """A rank dies, and the command tells so and ends the others."""
    words = ("generate", "hello", "--max-tokens", "30000", "--tensor-parallel-size", "2", "--model")
    command = [sys.executable, "-m", "twophase_tools", *words, str(talkative_folder)]
    process = subprocess.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline, started = time.monotonic() + 60, []
        while not started and time.monotonic() < deadline:
            time.sleep(0.1)
            started = children_of(process.pid)
        os.kill(started[0], 9)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert b"rank 0 was killed by signal 9" in err
    assert not is_running(started[0])


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
