"""The challenge's board: a folder of entries, each a JSON file that says what was run, on what, and how it went."""

import hashlib
import json
import re
import runpy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import twophase
from twophase.core.errors import TwophaseError
from twophase.scheduling.policy import Policy
from twophase_labs.scheduling import challenge

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")


class EntryError(TwophaseError):
    """A file that does not play, or an entry that cannot be on this board; says why."""


def versions_of(seeds: Sequence[int]) -> dict[str, str]:
    """What a score depends on besides the policy. The digest changes by itself when the challenge does."""
    rules = (challenge.COST, challenge.SLO, challenge.POOL, challenge.LIMITS)
    traffics = [challenge.traffic(seed) for seed in seeds]
    digest = hashlib.sha256(repr((rules, traffics)).encode()).hexdigest()
    return {"twophase": twophase.__version__, "workload": digest[:12]}


def play_file(path: Path, name: str, seeds: Sequence[int]) -> challenge.Entry:
    """Score a file that defines `Challenger(cost, slo)` and, if it likes, `my_limits`. It runs in this process, as any
    Python file does: run your own.

    Raises:
        EntryError: It does not play; says why.
    """

    def policy() -> Policy:
        made = module["Challenger"](challenge.COST, challenge.SLO)
        if not isinstance(made, Policy):
            raise TypeError(f"Challenger(cost, slo) gives a {type(made).__name__}; it should be a Policy")
        return made

    try:
        module = runpy.run_path(str(path), run_name="entrant")
        return challenge.entry(name, policy, dict(module.get("my_limits", {})), seeds)
    except (Exception, SystemExit) as error:
        raise EntryError(f"{path} does not play ({type(error).__name__}: {error}).") from error


def run(path: Path, folder: Path, name: str | None = None, seeds: Sequence[int] = challenge.SEEDS) -> challenge.Entry:
    """Score a policy's file and put its entry into the folder, in place of the one of the same name.

    Raises:
        EntryError: A name that is no file's, or a file that does not play.
    """
    called = path.stem if name is None else name
    if not _NAME.fullmatch(called):
        raise EntryError(
            f"a name is up to 40 letters, digits, spaces, '.', '_' and '-', got {called!r:.80}; use --name."
        )
    result = play_file(path, called, seeds)
    folder.mkdir(parents=True, exist_ok=True)
    told = {"result": asdict(result), "seeds": list(seeds), "versions": versions_of(seeds)}
    (folder / f"{called}.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return result


def read_entry(path: Path, seeds: Sequence[int] = challenge.SEEDS) -> challenge.Entry:
    """Raises EntryError for a file that is no entry, or one of another version or of other seeds."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        result, there = challenge.Entry(**told["result"]), (told["seeds"], told["versions"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EntryError(f"{path.name} is no entry ({type(error).__name__}: {error}).") from error
    if there != (list(seeds), versions_of(seeds)):
        raise EntryError(f"{path.name} is of another version or other seeds; run it again.")
    return result


def read_board(folder: Path, seeds: Sequence[int] = challenge.SEEDS) -> tuple[list[challenge.Entry], list[str]]:
    """The entries, best first, and why each other file is not among them."""
    entries, refused = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            entries.append(read_entry(path, seeds))
        except EntryError as error:
            refused.append(str(error))
    return sorted(entries, key=lambda entry: (-entry.score, entry.name)), refused
