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
from tests.fuzz.rule import FindingError, findings, refusing_clearly
from twophase.core.errors import ConfigError
from twophase.engine import model_run
from twophase.scheduling.planner import Planner
from twophase_features.experts.config import MIXTRAL_DEFAULTS

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
    assert min(tally.get(outcome, 0) for outcome in ("accepted", "refused", "compared")) >= 4, tally


@pytest.mark.full
def test_many_are_clean(tmp_path):
    fuzz(1000, 1000, tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("folders"))


@pytest.mark.parametrize("step", [43, pytest.param(1, marks=pytest.mark.full)])
def test_a_folder_means_what_transformers_says_or_is_refused(step, folders):
    folders.tally.clear()
    cases = [
        case for place, case in enumerate(folders.cases()) if place % step == 0 or case.kind in ("tokens", "templates")
    ]
    for case in cases:
        folders.try_one(case)
    assert folders.tally.total() == len(cases)
    for outcome in ("equal", "refused"):
        assert len({kind for kind, each in folders.tally if each == outcome}) > 5, folders.table()


# -- would they notice?


def test_a_default_of_another_family_is_noticed(folders, monkeypatch):
    name = "config.json with {'rope_parameters': 'absent'}"
    case = next(case for case in folders.cases() if case[:2] == ("mixtral", name))
    folders.try_one(case)
    monkeypatch.setitem(MIXTRAL_DEFAULTS, "rope_theta", 10_000.0)
    with pytest.raises(FindingError, match=r"mixtral: .*rope_parameters"):
        folders.try_one(case)


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


def test_a_neighbours_draw_is_noticed(requests, monkeypatch):
    """Draws that depend on the batch: each row of it takes the next one's position."""
    row_of = model_run.row_after
    ever = iter(range(10**9))

    def shifted(*args):
        row = row_of(*args)
        return row._replace(position=row.position + next(ever) % 2)

    monkeypatch.setattr(model_run, "row_after", shifted)
    found = findings(requests.try_one, count=20, seed=0)
    assert any("alone" in finding for finding in found), found


def test_a_raw_exception_and_an_unclear_error_are_noticed():
    with pytest.raises(FindingError, match="KeyError"), refusing_clearly("a request"):
        {}["x"]
    for unclear in ("no", "\ud800 is no text that anyone can print", "x " * 2000):
        with pytest.raises(FindingError), refusing_clearly("a request"):
            raise ConfigError(unclear)
