"""What a learner did so far: attempts, hints, reveals, predictions. One JSON file beside the notebook.

Each event reads the file, changes it and replaces it in one step, so that a crash or a second kernel costs at most one
event. A file that cannot be read is moved aside, never overwritten.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "TWOPHASE_PROGRESS_DIR"


def progress_path(notebook: Path) -> Path:
    """`labs/01_autoregression.ipynb` has `labs/01_autoregression.progress.json`."""
    return notebook.with_suffix(".progress.json")


class Progress:
    """The file of one lab. `notes` collects what went wrong with it, for the next card to tell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []

    def of(self, exercise: str) -> dict[str, Any]:
        """What is recorded of one exercise: attempts, verdict (the last, or 'passed' once it has), hints, revealed,
        prediction (or, if it came after the measurement, late_prediction), measured."""
        return self.all().get(exercise, {})

    def all(self) -> dict[str, dict[str, Any]]:
        return {key: value for key, value in self._read()["exercises"].items() if isinstance(value, dict)}

    def record(self, exercise: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Apply `change` to the entry of an exercise and write the file; returns the entry."""
        everything, entry = self._read(), self.of(exercise)
        change(entry)
        everything["exercises"][exercise] = entry
        try:
            self._write(everything)
        except OSError as error:
            self.notes.append(f"Your progress could not be saved in {self.path.name}: {error.strerror or error}.")
        return entry

    def take_notes(self) -> tuple[str, ...]:
        notes, self.notes = tuple(self.notes), []
        return notes

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or not isinstance(data["exercises"], dict):
                raise ValueError("not a progress file")
        except FileNotFoundError:
            return {"exercises": {}}
        except (ValueError, KeyError, OSError, RecursionError) as error:
            self._move_aside(error)
            return {"exercises": {}}
        return data

    def _move_aside(self, error: Exception) -> None:
        aside = free_name(self.path.with_suffix(".broken.json"))
        try:
            os.replace(self.path, aside)
        except OSError:
            return
        why = f"{type(error).__name__}: {error}"
        self.notes.append(
            f"{self.path.name} could not be read ({why}); it was moved to {aside.name} and a new one begun."
        )

    def _write(self, data: dict[str, Any]) -> None:
        text = json.dumps({**data, "version": 1}, indent=1, sort_keys=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def as_count(value: Any) -> int:
    """How often, as recorded; 0 for what is no count."""
    return value if type(value) is int and value >= 0 else 0


def free_name(path: Path) -> Path:
    """`path`, or with -2, -3 ... before its suffixes if that is taken."""
    stem, dot, suffixes = path.name.partition(".")
    candidate, number = path, 2
    while candidate.exists():
        candidate = path.with_name(f"{stem}-{number}{dot}{suffixes}")
        number += 1
    return candidate
