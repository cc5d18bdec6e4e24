"""A sample of every fuzzer, the same in each run; with `--full` many more. And proof that they would notice.

The samples run in a process of their own: here types are enforced by a hook, which would refuse before the package does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.folders import Folders
from tests.fuzz.requests import Requests
from tests.fuzz.rule import findings
from twophase.core.errors import ConfigError
from twophase.scheduling.planner import Planner

ROOT = Path(__file__).parents[2]


def fuzz(count, seed, cwd):
    """How many of each outcome there were; fails with the findings, if there are any."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.requests", str(count), str(seed)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert result["findings"] == []
    return result["tally"]


def test_a_sample_is_clean(tmp_path):
    tally = fuzz(12, 0, tmp_path)
    assert min(tally.get(outcome, 0) for outcome in ("accepted", "refused")) >= 4, tally


@pytest.mark.full
def test_many_are_clean(tmp_path):
    fuzz(1000, 1000, tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("folders"))


@pytest.mark.parametrize("step", [43, pytest.param(1, marks=pytest.mark.full)])
def test_a_folder_means_what_transformers_says_or_is_refused(step, folders):
    folders.tally.clear()
    always = ("tokens", "templates", "weights")
    cases = [case for place, case in enumerate(folders.cases()) if place % step == 0 or case.kind in always]
    for case in cases:
        folders.try_one(case)
    assert folders.tally.total() == len(cases)
    for outcome in ("equal", "refused"):
        assert len({kind for kind, each in folders.tally if each == outcome}) > 5, folders.table()


# -- would they notice?


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    return Requests(tmp_path_factory.mktemp("requests"), nonsense=False)


def test_a_ghost_is_noticed(requests, monkeypatch):
    """A refused request that stays in the queue."""

    def refuse(*args):
        add(*args)
        raise ConfigError("this one is refused, and stays in the queue all the same")

    add = Planner.add
    monkeypatch.setattr(Planner, "add", refuse)
    assert any("was refused, and" in finding for finding in findings(requests.try_one, count=10, seed=0))
