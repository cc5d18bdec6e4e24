"""The labs of the course, and how far a learner has come in each."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.progress import DIRECTORY_VARIABLE, Progress, progress_path


@dataclass(frozen=True)
class LabProgress:
    """One lab's core exercises: how many there are, how many have passed, which comes next."""

    name: str
    minutes: int
    num_exercises: int
    num_passed: int
    points: int
    max_points: int
    next_exercise: str

    @property
    def title(self) -> str:
        """'1 autoregression' for 01_autoregression."""
        return self.name.lstrip("0").replace("_", " ")

    def cells(self) -> tuple[str, ...]:
        """As a table shows it."""
        passed = f"{self.num_passed} of {self.num_exercises}"
        return f"{self.minutes} min", passed, f"{self.points} of {self.max_points}", self.next_exercise or "complete"


HEADINGS = ("lab", "time", "passed", "points", "next")


@dataclass(frozen=True)
class CourseMap:
    """Shown by a notebook as a table with links to the labs."""

    labs: tuple[LabProgress, ...]

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [HEADINGS, *((lab.title, *lab.cells()) for lab in self.labs)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_markdown_(self) -> str:
        rows: list[tuple[str, ...]] = [HEADINGS, ("---", "---:", "---:", "---:", "---")]
        rows += [(f"[{lab.title}]({lab.name}.ipynb)", *lab.cells()) for lab in self.labs]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def course_map(workbook: Workbook | None = None, folder: Path | None = None) -> CourseMap:
    """The labs with exercises, and what the progress files in `folder` (this one) record of them."""
    folder = folder or Path(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd())
    return CourseMap(tuple(_rows(workbook or Workbook.find(), folder)))


def _rows(workbook: Workbook, folder: Path) -> Iterator[LabProgress]:
    for lab in workbook.labs.values():
        if lab.exercises:
            yield _progress_in(lab, folder)


def _progress_in(lab: Lab, folder: Path) -> LabProgress:
    recorded = Progress(progress_path(folder / f"{lab.name}.ipynb")).all()
    has_passed = {i for i, entry in recorded.items() if entry.get("verdict") == "passed"}
    return LabProgress(
        name=lab.name,
        minutes=lab.minutes if lab.minutes is not None else sum(e.minutes for e in lab.core),
        num_exercises=len(lab.core),
        num_passed=sum(e.id in has_passed for e in lab.core),
        points=sum(e.points for e in lab.core if e.id in has_passed),
        max_points=sum(e.points for e in lab.core),
        next_exercise=next((e.id for e in lab.core if e.id not in has_passed), ""),
    )
