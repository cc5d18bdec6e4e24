"""The challenge's board: scores that can be repeated, files that cost only their own entry, entries of other versions."""

import argparse
import json
from pathlib import Path

import pytest

from tests.mutation import KillTable, Mutant
from twophase.core.errors import TwophaseError
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_features.policies.round_robin import RotatingPolicy
from twophase_labs.commands import challenge as command
from twophase_labs.machine.grading import sandbox
from twophase_labs.scheduling import challenge, leaderboard
from twophase_labs.scheduling.entrant import EntrantError, play_file
from twophase_labs.scheduling.leaderboard import EntryError

SEEDS = (4,)
HEAD = """
from twophase.scheduling.policy import *
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_features.policies.round_robin import RotatingPolicy
"""
CHUNKED = HEAD + "def Challenger(cost, slo):\n    return ChunkedPrefillPolicy(128)\n"


def made(policy: str, more: str = "") -> str:
    return f"{HEAD}{more}\ndef Challenger(cost, slo):\n    return {policy}\n"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("ChunkedPrefillPolicy(128)", lambda: ChunkedPrefillPolicy(128)),
        ("PriorityPolicy(patience_s=0.5)", lambda: PriorityPolicy(patience_s=0.5)),
        ("DynamicPolicy(8, 0.25)", lambda: DynamicPolicy(8, 0.25)),  # waits until a time
        ("RotatingPolicy(64, 256)", lambda: RotatingPolicy(64, 256)),  # counts what it is told
    ],
)
def test_the_repetition_scores_what_the_policy_itself_does(text, policy):
    limits = {"max_num_seqs": 32, "watermark": 0.05}
    found = play_file(made(text, f"my_limits = {limits}"), SEEDS)
    assert found == challenge.entry("", policy, limits, SEEDS)


def test_seeds_are_traffics():
    one, other = (play_file(CHUNKED, (seed,)) for seed in (4, 5))
    assert one != other
    both = play_file(CHUNKED, (4, 5))
    assert both.score == pytest.approx((one.score + other.score) / 2)


def test_a_policy_with_numbers_of_numpy_and_a_state_of_its_own():
    more = """
import numpy as np
from dataclasses import dataclass
@dataclass
class Mine(Policy):
    turn: int = 0
    def rank(self, sequence):
        return (np.float64(sequence.request.arrival_s), np.int64(sequence.arrival_order), (sequence.index, 0))
    def plan(self, step):
        self.turn += 1
        for sequence in step.running:
            step.decode(sequence) if sequence.is_decoding else step.prefill(sequence, np.int64(100))
        step.limit(np.int64(300))
        for sequence in step.waiting:
            if not step.admit(sequence, whole=self.turn % 2 == 0):
                break
"""
    assert 0 < play_file(made("Mine()", more), SEEDS).score <= 100


BROKEN = {
    "no Python": ("def (", "SyntaxError"),
    "no policy": ("x = 1", r"defines no Challenger\(cost, slo\)"),
    "something else": ("def Challenger(cost, slo): return 5", "gives a int; it should be a Policy"),
    "an error when it is made": ("def Challenger(cost, slo): return 1 / 0", "ZeroDivisionError"),
    "an error in a step": (made("Mine()", "class Mine(Policy):\n    def rank(self, s): return by_priority(s)\n    def plan(self, step): step.nonsense()"), "AttributeError"),
    "a move that makes no sense": (made("Mine()", "class Mine(Policy):\n    def rank(self, s): return by_priority(s)\n    def plan(self, step):\n        for s in step.waiting:\n            step.decode(s)"), "PolicyError"),
    "it plans nothing": (made("Mine()", "class Mine(Policy):\n    def rank(self, s): return by_priority(s)\n    def plan(self, step): pass"), "planned nothing"),
    "a limit that is not its own": (made("PriorityPolicy()", "my_limits = {'num_blocks': 9999}"), "num_blocks is none of them"),
    "it leaves": ("import sys; sys.exit(0)", "SystemExit"),
    "it leaves at once": ("import os; os._exit(0)", "told no moves"),
    # (The first process of a namespace does not hear its own signals.)
    "it kills its process": ("import os; os.kill(os.getpid(), 9)", "told no moves|defines no Challenger"),
    "it wants all memory": ("x = bytearray(64 * 2**30)", "MemoryError"),
}  # fmt: skip


QUICK = ("no policy", "an error in a step", "it leaves at once", "it wants all memory")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in QUICK else pytest.mark.full) for what in BROKEN]
)
def test_a_broken_file_says_why(what):
    source, said = BROKEN[what]
    with pytest.raises(EntrantError, match=said):
        play_file(source, SEEDS)


def test_one_that_never_ends_is_ended():
    with pytest.raises(EntrantError, match="within 5 s"):
        play_file("while True: pass", SEEDS, time_limit_s=5)


# Each would have a score of its own making, if what it does in its process counted.
CHEATS = {
    "another score": "from twophase_labs.scheduling import challenge\nchallenge.score = lambda *args: 100.0",
    "kinder promises": "from twophase_labs.scheduling import challenge\nfrom twophase_tools.load.slo import Slo\nchallenge.SLO = Slo(ttft_s=1e6, tpot_s=1e6)",
    "less traffic": "from twophase_labs.scheduling import challenge\nreal = challenge.traffic\nchallenge.traffic = lambda seed: real(seed)[:3]",
    "a larger machine": "from twophase_labs.scheduling import challenge\nchallenge.POOL['num_blocks'] = 10**5",
    "shorter answers": "from twophase_labs.scheduling import hidden_lengths\nreal = hidden_lengths._asked\nhidden_lengths._asked = lambda *args: (setattr(hidden_lengths, 'END', 1), real(*args))[1]",
    "moves that nobody made": "import json, os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, json.dumps({'limits': {}, 'runs': [{'ranks': {}, 'steps': []}]}).encode())\n    except OSError:\n        pass\nos._exit(0)",
}  # fmt: skip


@pytest.mark.parametrize(
    "cheat",
    [pytest.param(name, marks=() if name == "another score" else pytest.mark.full) for name in CHEATS],
)
def test_what_a_file_does_in_its_process_does_not_count(cheat):
    honest = play_file(CHUNKED, SEEDS)
    try:
        found = play_file(made("ChunkedPrefillPolicy(128)", CHEATS[cheat]), SEEDS)
    except EntrantError:
        return
    assert found == honest


@pytest.mark.unchecked_types
def test_a_file_reaches_no_other_file(tmp_path):
    world = sandbox.World(tuple(Path(path) for path in sandbox.importable()))
    if sandbox.isolation_of(world) != sandbox.NAMESPACES:
        pytest.skip("namespaces are not allowed here")
    secret, target = tmp_path / "secret", tmp_path / "board" / "other.json"
    secret.write_text("x")
    target.parent.mkdir()
    target.write_text("{}")
    more = f"from pathlib import Path\nassert not Path({str(secret)!r}).exists()\ntry:\n    Path({str(target)!r}).unlink()\nexcept OSError:\n    pass"
    assert play_file(made("ChunkedPrefillPolicy(128)", more), SEEDS).score > 0
    assert target.exists()


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CHUNKED, encoding="utf-8")
    return path


def test_the_same_file_makes_the_same_entry(tmp_path, policy_file):
    board = tmp_path / "board"
    leaderboard.run(policy_file, board, seeds=SEEDS)
    first = (board / "mine.json").read_bytes()
    leaderboard.run(policy_file, board, seeds=SEEDS)
    assert (board / "mine.json").read_bytes() == first
    told = json.loads(first)
    assert told["versions"].keys() == {"twophase", "workload"}
    assert len(told["source_sha256"]) == 64
    assert [path.name for path in board.iterdir()] == ["mine.json"]


def spoilt(folder: Path, name: str, **changes) -> Path:
    told = json.loads((folder / "mine.json").read_text())
    for key, value in changes.items():
        told[key] = told[key] | value if isinstance(value, dict) else value
    path = folder / name
    path.write_text(json.dumps(told))
    return path


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """The text of a good one."""
    folder = tmp_path_factory.mktemp("entry")
    (folder / "mine.py").write_text(CHUNKED, encoding="utf-8")
    leaderboard.run(folder / "mine.py", folder, seeds=SEEDS)
    return (folder / "mine.json").read_text()


def check_refusals(module, board, entry):
    (board / "mine.json").write_text(entry)
    good = module.read_entry(board / "mine.json", SEEDS)
    assert good.result.name == "mine"
    wrong = [
        ({"versions": {"twophase": "0.0.1"}}, "of another version .twophase 0.0.1, here"),
        ({"versions": {"workload": "abc"}}, "of another version .workload abc, here"),
        ({"format": 7}, "has format 7, and this board reads 1"),
        ({"seeds": [9]}, "is of seeds 9, and this board of 4"),
        ({"result": {"score": "100"}}, "is no entry"),
        ({"result": {"score": float("nan")}}, "is no entry"),
        ({"result": None}, "is no entry"),
    ]
    for number, (changes, said) in enumerate(wrong):
        with pytest.raises(module.EntryError, match=said):
            module.read_entry(spoilt(board, f"x{number}.json", **changes), SEEDS)
    (board / "y.json").write_text("{")
    spoilt(board, "best.json", result={"score": 99.5, "name": "best"})
    entries, refused = module.read_board(board, SEEDS)
    assert [filed.result.name for filed in entries] == ["best", "mine"]
    assert len(refused) == len(wrong) + 1
    assert module.versions_of((4,)) != module.versions_of((5,))


def test_entries_that_are_not_of_this_board(tmp_path, entry):
    check_refusals(leaderboard, tmp_path, entry)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("any version", "if filed.versions.get(part) != here:", "if False:"),
        ("any seeds", "if filed.seeds != tuple(seeds):", "if False:"),
        ("any format", 'if told.get("format") != FORMAT:', "if False:"),
        ("any number", "0 <= number < 1e9", "True"),
        ("worst first", "(-filed.result.score,", "(filed.result.score,"),
        ("traffics do not count", "traffics = [challenge.traffic(seed) for seed in seeds]", "traffics = []"),
    ],
)
def test_mutants_of_the_board_are_killed(name, old, new, tmp_path, entry):
    mutant = Mutant(name, "twophase_labs.scheduling.leaderboard", old, new)
    numbers = iter(range(9))

    def check(module):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        check_refusals(module, folder, entry)

    KillTable.record(mutant, check)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "x" * 41, ".hidden"])
def test_a_name_is_that_of_a_file(name, tmp_path, policy_file):
    with pytest.raises(EntryError, match="a name is up to 40 letters"):
        leaderboard.run(policy_file, tmp_path / "board", name, SEEDS)
    assert not (tmp_path / "board").exists()


def test_a_file_that_is_not_there_or_does_not_play_leaves_the_board_alone(tmp_path, policy_file):
    board = tmp_path / "board"
    leaderboard.run(policy_file, board, seeds=SEEDS)
    before = (board / "mine.json").read_bytes()
    with pytest.raises(EntryError, match="cannot be read"):
        leaderboard.run(tmp_path / "none.py", board, seeds=SEEDS)
    policy_file.write_text("x = 1")
    with pytest.raises(EntrantError):
        leaderboard.run(policy_file, board, seeds=SEEDS)
    assert (board / "mine.json").read_bytes() == before


def twophase(*words) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["challenge", *map(str, words)])
    return args.run(args)


def test_the_command(tmp_path, policy_file, capsys):
    where = ("--folder", tmp_path / "board", "--seed", 4)
    assert twophase(*where) == 0
    assert "no entries in" in capsys.readouterr().out
    assert twophase(*where, "run", policy_file) == 0
    first = capsys.readouterr().out
    assert "place 1 of 1" in first
    better = tmp_path / "better.py"
    answer = Path(__file__).parents[3] / "labsolutions" / "04_scheduling.py"
    cell = answer.read_text(encoding="utf-8").partition("class Challenger(Policy)")[2].partition("# %%")[0]
    better.write_text(f"{HEAD}class Challenger(Policy){cell}", encoding="utf-8")
    assert twophase(*where, "run", better, "--name", "lab 4") == 0
    out = capsys.readouterr().out
    assert "lab 4: " in out
    assert "place 1 of 2" in out
    assert twophase(*where, "run", policy_file) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[0] == first.splitlines()[0].replace("1 of 1", "2 of 2")
    spoilt(tmp_path / "board", "old.json", versions={"workload": "abc"})
    assert twophase(*where) == 0
    printed = capsys.readouterr()
    assert [line.split()[1] for line in printed.out.splitlines()[1:]] == ["lab", "mine"]
    assert "not on the board: old.json is of another version" in printed.err


def test_its_errors_are_the_command_lines():
    assert issubclass(EntryError, TwophaseError)
    assert issubclass(EntrantError, TwophaseError)
