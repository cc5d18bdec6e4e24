"""The challenge's board: a folder of entries, each a JSON file that says what was run, on what, and how it went."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import twophase
from twophase.core.errors import TwophaseError
from twophase_labs.scheduling import challenge
from twophase_labs.scheduling.entrant import play_file

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")


class EntryError(TwophaseError):
    """An entry that cannot be on this board; says why."""


@dataclass(frozen=True)
class Filed:
    """An entry as its file has it.

    Attributes:
        result: Its name, score and parts.
        seeds: Of the traffics.
        source_sha256: Of the policy's file.
        versions: Of the package, and of the workload: a digest of the traffics, the machine and the promises.
    """

    result: challenge.Entry
    seeds: tuple[int, ...]
    source_sha256: str
    versions: dict[str, str]


def versions_of(seeds: Sequence[int]) -> dict[str, str]:
    """What a score depends on besides the policy. The digest changes by itself when the challenge does."""
    rules = (challenge.COST, challenge.SLO, challenge.POOL, challenge.LIMITS)
    traffics = [challenge.traffic(seed) for seed in seeds]
    digest = hashlib.sha256(repr((rules, traffics)).encode()).hexdigest()
    return {"twophase": twophase.__version__, "workload": digest[:12]}


def run(path: Path, folder: Path, name: str | None = None, seeds: Sequence[int] = challenge.SEEDS) -> Filed:
    """Score a policy's file and put its entry into the folder, in place of the one of the same name.

    Raises:
        EntryError: The file cannot be read, or a name that is no file's.
        EntrantError: The policy does not play.
    """
    called = path.stem if name is None else name
    if not _NAME.fullmatch(called):
        raise EntryError(
            f"a name is up to 40 letters, digits, spaces, '.', '_' and '-', got {called!r:.80}; use --name."
        )
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EntryError(f"{path} cannot be read: {error}.") from error
    result = play_file(source, seeds)
    filed = Filed(
        challenge.Entry(called, result.score, result.goodput_per_s, result.in_time, result.smooth),
        tuple(seeds),
        hashlib.sha256(source.encode()).hexdigest(),
        versions_of(seeds),
    )
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{called}.draft"
    draft.write_text(json.dumps({"format": FORMAT} | asdict(filed), indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / f"{called}.json")
    return filed


def read_entry(path: Path, seeds: Sequence[int] = challenge.SEEDS) -> Filed:
    """Raises EntryError for a file that is no entry, or one of another version or of other seeds."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        filed = Filed(_result(told["result"]), tuple(told["seeds"]), str(told["source_sha256"]), dict(told["versions"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EntryError(f"{path.name} is no entry ({type(error).__name__}: {error}).") from error
    if told.get("format") != FORMAT:
        raise EntryError(
            f"{path.name} has format {told.get('format')!r:.20}, and this board reads {FORMAT}; run it again."
        )
    if filed.seeds != tuple(seeds):
        raise EntryError(f"{path.name} is of seeds {_listed(filed.seeds)}, and this board of {_listed(seeds)}.")
    for part, here in versions_of(seeds).items():
        if filed.versions.get(part) != here:
            there = str(filed.versions.get(part))[:20]
            raise EntryError(f"{path.name} is of another version ({part} {there}, here {here}); run it again.")
    return filed


def _result(told: dict[str, Any]) -> challenge.Entry:
    numbers = [told[name] for name in ("score", "goodput_per_s", "in_time", "smooth")]
    if not all(isinstance(number, int | float) and 0 <= number < 1e9 for number in numbers):
        raise ValueError("its numbers are none")
    return challenge.Entry(str(told["name"])[:40], *numbers)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def read_board(folder: Path, seeds: Sequence[int] = challenge.SEEDS) -> tuple[list[Filed], list[str]]:
    """The entries, best first, and why each other file is not among them."""
    entries, refused = [], []
    for path in _files(folder):
        try:
            entries.append(read_entry(path, seeds))
        except EntryError as error:
            refused.append(str(error))
    return sorted(entries, key=lambda filed: (-filed.result.score, filed.result.name)), refused


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*.json")) if path.is_file())
