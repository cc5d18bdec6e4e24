"""The labs of the course: how far a learner has come in each, what is next, and shorter ways through them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twophase_labs.machine.lab import Lab, Workbook
from twophase_labs.machine.progress import DIRECTORY_VARIABLE, Progress, progress_path

BAR = 10  # characters
HEADINGS = ("lab", "time", "", "passed", "points", "next")
REPORT = 'make grade ARGS="--html report.html"'

# Six to eight hours each: a lab's number, and the numbers of its sections.
PATHS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "kernels": {"1": (1, 2, 4, 5), "2": (1, 2, 4, 5, 6, 7, 8, 9, 10, 11), "3": (3, 5, 6, 9), "6": (7,)},
    "serving": {"1": (2, 5, 7), "3": (3,), "4": (2, 3, 4, 6, 7), "5": (1,), "7": (6,), "8": (1, 2, 4, 5)},
}


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

    @property
    def bar(self) -> str:
        """Full when all exercises have passed, and not before."""
        num_full = BAR * self.num_passed // self.num_exercises
        return "█" * num_full + "░" * (BAR - num_full)

    def cells(self) -> tuple[str, ...]:
        """As a table shows it."""
        passed = f"{self.num_passed} of {self.num_exercises}"
        points = f"{self.points} of {self.max_points}"
        return f"{self.minutes} min", self.bar, passed, points, self.next_exercise or "complete"


@dataclass(frozen=True)
class CourseMap:
    """Shown by a notebook as a table with links to the labs, and what to do next."""

    labs: tuple[LabProgress, ...]

    @property
    def total(self) -> LabProgress:
        """All labs as one."""
        names = ("minutes", "num_exercises", "num_passed", "points", "max_points")
        sums = {name: sum(getattr(lab, name) for lab in self.labs) for name in names}
        return LabProgress("all", **sums, next_exercise=self.next_lab.next_exercise if self.next_lab else "")

    @property
    def next_lab(self) -> LabProgress | None:
        """The last that was begun and is not complete; else the first that is not complete."""
        unfinished = [lab for lab in self.labs if lab.next_exercise]
        begun = [lab for lab in unfinished if lab.num_passed]
        return begun[-1] if begun else next(iter(unfinished), None)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [HEADINGS, *((lab.title, *lab.cells()) for lab in (*self.labs, self.total))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_markdown_(self) -> str:
        rows: list[tuple[str, ...]] = [HEADINGS, ("---", "---:", "---", "---:", "---:", "---")]
        rows += [(f"[{lab.title}]({lab.name}.ipynb)", *lab.cells()) for lab in self.labs]
        rows.append(tuple(f"**{cell}**" if cell else "" for cell in ("all labs", *self.total.cells()[:-1], "")))
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        lab = self.next_lab
        return f"{table}\n\n**Next:** {lab.next_exercise} in [lab {lab.title}]({lab.name}.ipynb)" if lab else table


@dataclass(frozen=True)
class Closing:
    """The end of a lab: what has passed, what is next, the report card, and the labs before and after."""

    lab: LabProgress
    before: str
    after: str

    @property
    def lines(self) -> tuple[str, str]:
        """Progress and what is next; the way to the report card."""
        lab = self.lab
        then = f"next: {lab.next_exercise}" if lab.next_exercise else "the lab is complete"
        return (
            f"{lab.bar} {lab.num_passed} of {lab.num_exercises} exercises, {lab.points} of {lab.max_points} points; "
            f"{then}",
            f"Your report card, with all labs: `{REPORT}` in a terminal",
        )

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_markdown_(self) -> str:
        links = (("← ", self.before), ("the map of the course: ", "00_start"), ("→ ", self.after))
        ways = " · ".join(f"[{arrow}{_title(name)}]({name}.ipynb)" for arrow, name in links if name)
        return "\n\n".join((*self.lines, ways))


@dataclass(frozen=True)
class Paths:
    """Shorter ways through the course, shown as a table; `minutes` by the way's name."""

    rows: Mapping[str, Sequence[str]]
    minutes: Mapping[str, int]

    def __repr__(self) -> str:
        return "\n".join(f"{name:8} {self._hours(name)}: {', '.join(row)}" for name, row in self.rows.items())

    def _repr_markdown_(self) -> str:
        rows = [("path", "time", "sections"), ("---", "---:", "---")]
        rows += [(f"**{name}**", self._hours(name), "; ".join(row)) for name, row in self.rows.items()]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _hours(self, name: str) -> str:
        return f"{self.minutes[name] / 60:.1f} h"


def course_map(workbook: Workbook | None = None, folder: Path | None = None) -> CourseMap:
    """The labs with exercises, and what the progress files in `folder` (this one) record of them."""
    workbook, folder = workbook or Workbook.find(), folder or _progress_folder()
    return CourseMap(tuple(_progress_in(lab, folder) for lab in workbook.labs.values() if lab.exercises))


def closing(number: str, workbook: Workbook | None = None, folder: Path | None = None) -> Closing:
    """What stands at the end of a lab, named by its number, such as '7'."""
    workbook = workbook or Workbook.find()
    lab = workbook.lab(number)
    names = ["", *(each.name for each in workbook.labs.values()), ""]
    at = names.index(lab.name)
    before = names[at - 1] if names[at - 1] != "00_start" else ""  # the map has a link of its own
    return Closing(_progress_in(lab, folder or _progress_folder()), before, names[at + 1])


def paths(workbook: Workbook | None = None) -> Paths:
    """The shorter ways, with their sections' own minutes."""
    workbook = workbook or Workbook.find()
    rows: dict[str, list[str]] = {}
    minutes: dict[str, int] = {}
    for name, labs in PATHS.items():
        rows[name] = [f"lab {lab}: {', '.join(map(str, numbers))}" for lab, numbers in labs.items()]
        minutes[name] = sum(_section_minutes(workbook.lab(lab), n) for lab, numbers in labs.items() for n in numbers)
    return Paths(rows, minutes)


def _section_minutes(lab: Lab, number: int) -> int:
    section = next(each for each in lab.sections if each.title.startswith(f"{number}. "))
    return section.minutes or section.extra_minutes


def _title(name: str) -> str:
    return f"lab {name.lstrip('0').replace('_', ' ')}" if name != "00_start" else "lab 0"


def _progress_folder() -> Path:
    return Path(os.environ.get(DIRECTORY_VARIABLE) or Path.cwd())


def _progress_in(lab: Lab, folder: Path) -> LabProgress:
    recorded = Progress(progress_path(folder / f"{lab.name}.ipynb")).all()
    has_passed = {i for i, entry in recorded.items() if entry.get("verdict") == "passed"}
    return LabProgress(
        name=lab.name,
        minutes=lab.minutes,
        num_exercises=len(lab.core),
        num_passed=sum(e.id in has_passed for e in lab.core),
        points=sum(e.points for e in lab.core if e.id in has_passed),
        max_points=sum(e.points for e in lab.core),
        next_exercise=next((e.id for e in lab.core if e.id not in has_passed), ""),
    )
