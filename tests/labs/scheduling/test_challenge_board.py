"""The challenge's board: scores that can be repeated, files that do not play, entries of other versions."""

import argparse
import json
from pathlib import Path

import pytest

from tests.mutation import KillTable, Mutant
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_labs.commands import challenge as command
from twophase_labs.scheduling import challenge, leaderboard
from twophase_labs.scheduling.leaderboard import EntryError

SEEDS = (4,)
HEAD = """
from twophase.scheduling.policy import *
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
"""
CHUNKED = HEAD + "my_limits = {'max_num_seqs': 32}\ndef Challenger(cost, slo):\n    return ChunkedPrefillPolicy(128)\n"
IDLE = (
    "class Challenger(Policy):\n    def __init__(self, cost, slo): pass\n    def rank(self, s): return by_priority(s)\n"
)

BROKEN = {
    "def (": "SyntaxError",
    "x = 1": "KeyError: 'Challenger'",
    "def Challenger(cost, slo): return 5": "gives a int; it should be a Policy",
    f"{IDLE}    def plan(self, step): step.nonsense()": "AttributeError",
    f"{IDLE}    def plan(self, step): pass": "planned nothing|unfinished",
    "my_limits = {'num_blocks': 9}\n" + CHUNKED.replace("my_limits =", "x ="): "none of them",
    "import sys; sys.exit(0)": "SystemExit",
}


@pytest.fixture(autouse=True, scope="module")
def _short_traffic():
    """A third of the challenge's requests."""
    traffic = challenge.traffic
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(challenge, "traffic", lambda seed: traffic(seed, num_requests=130))
        yield


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CHUNKED, encoding="utf-8")
    return path


def test_the_same_file_makes_the_same_entry(tmp_path, policy_file):
    board = tmp_path / "board"
    found = leaderboard.run(policy_file, board, seeds=SEEDS)
    assert found == challenge.entry("mine", lambda: ChunkedPrefillPolicy(128), {"max_num_seqs": 32}, SEEDS)
    first = (board / "mine.json").read_bytes()
    leaderboard.run(policy_file, board, seeds=SEEDS)
    assert (board / "mine.json").read_bytes() == first
    assert [path.name for path in board.iterdir()] == ["mine.json"]


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_file_says_why_and_leaves_the_board_alone(source, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + source, encoding="utf-8")
    with pytest.raises(EntryError, match=BROKEN[source]):
        leaderboard.run(path, tmp_path / "board", seeds=SEEDS)
    assert not (tmp_path / "board").exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "x" * 41, ".hidden"])
def test_a_name_is_that_of_a_file(name, tmp_path, policy_file):
    with pytest.raises(EntryError, match="a name is up to 40 letters"):
        leaderboard.run(policy_file, tmp_path / "board", name, SEEDS)
    with pytest.raises(EntryError, match="FileNotFoundError"):
        leaderboard.run(tmp_path / "none.py", tmp_path / "board", seeds=SEEDS)


def spoilt(folder: Path, name: str, **changes) -> Path:
    told = json.loads((folder / "mine.json").read_text())
    for key, value in changes.items():
        told[key] = told[key] | value if isinstance(value, dict) else value
    (folder / name).write_text(json.dumps(told))
    return folder / name


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """The text of a good one."""
    folder = tmp_path_factory.mktemp("entry")
    (folder / "mine.py").write_text(CHUNKED, encoding="utf-8")
    leaderboard.run(folder / "mine.py", folder, seeds=SEEDS)
    return (folder / "mine.json").read_text()


def check_refusals(module, board, entry):
    (board / "mine.json").write_text(entry)
    assert module.read_entry(board / "mine.json", SEEDS).name == "mine"
    for number, changes in enumerate(
        ({"versions": {"twophase": "0.0.1"}}, {"versions": {"workload": "a"}}, {"seeds": [9]})
    ):
        with pytest.raises(module.EntryError, match="of another version or other seeds"):
            module.read_entry(spoilt(board, f"x{number}.json", **changes), SEEDS)
    (board / "y.json").write_text("{")
    spoilt(board, "z.json", result=None)
    spoilt(board, "best.json", result={"score": 99.5, "name": "best"})
    entries, refused = module.read_board(board, SEEDS)
    assert [found.name for found in entries] == ["best", "mine"]
    assert len(refused) == 5
    assert module.versions_of((4,)) != module.versions_of((5,))


def test_entries_that_are_not_of_this_board(tmp_path, entry):
    check_refusals(leaderboard, tmp_path, entry)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("any version", "if there != (list(seeds), versions_of(seeds)):", "if there[0] != list(seeds):"),
        ("any seeds", "if there != (list(seeds), versions_of(seeds)):", "if there[1] != versions_of(seeds):"),
        ("worst first", "(-entry.score,", "(entry.score,"),
        ("traffics do not count", "traffics = [challenge.traffic(seed) for seed in seeds]", "traffics = []"),
    ],
)
def test_mutants_of_the_board_are_killed(name, old, new, tmp_path, entry):
    mutant, numbers = Mutant(name, "twophase_labs.scheduling.leaderboard", old, new), iter(range(9))

    def check(module):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        check_refusals(module, folder, entry)

    KillTable.record(mutant, check)


def twophase(*words) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["challenge", *map(str, words)])
    return args.run(args)


def test_the_command(tmp_path, policy_file, capsys):
    where = ("--folder", tmp_path / "board", "--seed", 4)
    assert twophase(*where) == 0
    assert "no entries in" in capsys.readouterr().out
    for name, place in (("mine", "place 1 of 1"), ("lab 4", "of 2")):
        assert twophase(*where, "run", policy_file, "--name", name) == 0
        out = capsys.readouterr().out
        assert f"{name}: " in out
        assert place in out
    spoilt(tmp_path / "board", "old.json", versions={"workload": "abc"})
    assert twophase(*where) == 0
    printed = capsys.readouterr()
    assert {line.split()[1] for line in printed.out.splitlines()[1:]} == {"lab", "mine"}
    assert "not on the board: old.json is of another version" in printed.err
