"""A sample of every fuzzer, the same in each run; with `--full` many more. And proof that they would notice."""

from random import Random

import pytest

from tests.fuzz.command_lines import CommandLines
from tests.fuzz.folders import Folders
from tests.fuzz.requests import Requests
from tests.fuzz.rule import FindingError, findings, refusing_clearly
from twophase.core.errors import ConfigError
from twophase.engine.sampler import SampleRow
from twophase.scheduling.roster import Roster


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    return Requests(tmp_path_factory.mktemp("requests"))


def test_requests(requests):
    assert findings(requests.try_one, count=120, seed=0) == []
    assert min(requests.tally[kind] for kind in ("accepted", "refused", "compared")) > 60


@pytest.mark.full
def test_many_requests(requests):
    assert findings(requests.try_one, count=4000, seed=1000) == []


def test_folders(tmp_path):
    folders = Folders(tmp_path)
    assert findings(folders.try_one, count=80, seed=0) == []
    assert min(folders.tally[kind] for kind in ("opened", "refused")) > 20


@pytest.mark.full
def test_many_folders(tmp_path):
    assert findings(Folders(tmp_path).try_one, count=1000, seed=1000) == []


def test_command_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = CommandLines(tmp_path)
    assert findings(lines.try_one, count=60, seed=0) == []
    assert min(lines.tally[status] for status in ("status 0", "status 2")) > 5


@pytest.mark.full
def test_many_command_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert findings(CommandLines(tmp_path).try_one, count=1000, seed=1000) == []


# -- would they notice?


def test_a_ghost_is_noticed(requests, monkeypatch):
    """A refused request that stays in the queue."""

    def refuse(roster, sequence):
        join_queue(roster, sequence)
        raise ConfigError("this one is refused, and stays in the queue all the same")

    join_queue = Roster.join_queue
    monkeypatch.setattr(Roster, "join_queue", refuse)
    (finding, *_) = findings(requests.try_one, count=5, seed=0)
    assert "was refused, and" in finding


def test_a_neighbours_draw_is_noticed(requests, monkeypatch):
    """Draws that depend on the batch: each row of it takes the next one's position."""
    init = SampleRow.__init__
    ever = iter(range(10**9))

    def shifted(row, *args, **kwargs):
        init(row, *args, **kwargs | {"position": kwargs["position"] + next(ever) % 2})

    monkeypatch.setattr(SampleRow, "__init__", shifted)
    assert any("alone" in finding for finding in findings(requests.try_one, count=20, seed=0))


def test_a_raw_exception_and_an_unclear_error_are_noticed():
    with pytest.raises(FindingError, match="KeyError"), refusing_clearly("a request"):
        {}["x"]
    for unclear in ("no", "\ud800 is no text that anyone can print", "x " * 2000):
        with pytest.raises(FindingError), refusing_clearly("a request"):
            raise ConfigError(unclear)


def test_a_traceback_of_the_command_line_is_noticed(tmp_path, monkeypatch):
    from twophase.cli import plan

    monkeypatch.setattr(plan, "run", lambda args: {}["x"])
    lines = CommandLines(tmp_path)
    monkeypatch.setattr(lines, "_generate", lambda random: ["plan", "--example"])
    for name in ("_simulate", "_serve", "_plan", "_other", "_nonsense"):
        monkeypatch.setattr(lines, name, lines._generate)
    with pytest.raises(FindingError, match="KeyError"):
        lines.try_one(Random(0))
