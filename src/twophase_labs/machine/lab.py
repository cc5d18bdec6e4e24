"""A lab as the machine sees it: the source in `labsolutions/`, and its chapter's package with the exercises."""

import copy
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from twophase.core.errors import TwophaseError
from twophase_labs.machine import blanks
from twophase_labs.machine.bank import Bank
from twophase_labs.machine.blanks import SourceError, Template
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.notebooks import NotebookNode, jupytext, nbformat
from twophase_labs.machine.sections import Section, sections

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
EXERCISE_TAG = "exercise:"
SETUP_TAG = "setup"
SOLUTION_TAG = "solution"
PACKAGE, ANSWERS = "twophase_labs", "tests.labs"
ROOT_VARIABLE, PACKAGE_VARIABLE = "TWOPHASE_WORKBOOK_ROOT", "TWOPHASE_WORKBOOK_PACKAGE"


class WorkbookError(TwophaseError):
    """A workbook, lab or exercise that cannot be found or read."""


def read_source(path: Path) -> NotebookNode:
    """The notebook a percent-format file describes, with stable ids and no outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = NotebookNode(copy.deepcopy(METADATA))
    build = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    notebook.metadata["twophase"] = NotebookNode({"lab": path.stem, "build": build})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        cell.source = cell.source.strip("\n")  # as ruff formats a notebook's cells
        cell.id = f"{path.stem.replace('_', '-')}-{index:03d}"
        cell.metadata = NotebookNode({key: value for key, value in cell.metadata.items() if key == "tags"})
    nbformat.validate(notebook)
    return notebook


def tags(cell: Mapping[str, Any]) -> list[str]:
    found = cell.get("metadata", {}).get("tags", [])
    return [tag for tag in found if isinstance(tag, str)] if isinstance(found, list) else []


def exercise_of(cell: Mapping[str, Any]) -> str | None:
    """The id in the tag `exercise:1.3`, if the cell has one."""
    for tag in tags(cell):
        if tag.startswith(EXERCISE_TAG):
            return tag.removeprefix(EXERCISE_TAG)
    return None


class Lab:
    """One lab. Reading the source and importing the exercises wait until they are asked for; nothing changes later."""

    def __init__(self, source: Path, package: str, answers: str = "") -> None:
        self.source = source
        self.name = source.stem
        self.number, _, self.chapter = source.stem.partition("_")
        self.package = f"{package}.{self.chapter}"
        self.answers = f"{answers or package}.{self.chapter}"

    @property
    def has_exercises(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def _modules(self, package: str, prefix: str = "") -> list[str]:
        if not self.has_exercises:
            return []
        folders = importlib.import_module(package).__path__
        return [f"{package}.{i.name}" for i in pkgutil.iter_modules(folders) if i.name.startswith(prefix)]

    @cached_property
    def exercises(self) -> Mapping[str, Exercise]:
        """By id, in order: those of every module in the chapter's `exercises`."""
        modules = [importlib.import_module(name) for name in self._modules(f"{self.package}.exercises")]
        found = [e for module in modules for e in vars(module).values() if isinstance(e, Exercise)]
        found.sort(key=lambda e: [int(part) if part.isdigit() else part for part in re.split(r"[._]", e.id)])
        ids = [e.id for e in found]
        if len(set(ids)) != len(ids):
            raise WorkbookError(f"lab {self.number} has two exercises of one id among {', '.join(ids)}")
        for exercise in found:
            exercise.validate()
        return {e.id: e for e in found}

    @property
    def core(self) -> tuple[Exercise, ...]:
        """What the grade counts."""
        return tuple(e for e in self.exercises.values() if not e.is_extra)

    @property
    def extra(self) -> tuple[Exercise, ...]:
        """What is shown beside the grade."""
        return tuple(e for e in self.exercises.values() if e.is_extra)

    @cached_property
    def banks(self) -> Mapping[str, Bank]:
        """Right and wrong answers by exercise id, from `BANKS` of every `answers_*`."""
        modules = self._modules(self.answers, "answers_")
        found = [item for module in modules for item in importlib.import_module(module).BANKS.items()]
        banks = dict(found)
        if len(banks) < len(found):
            raise WorkbookError(f"lab {self.number} has two banks of one exercise among {sorted(i for i, _ in found)}")
        return banks

    @cached_property
    def notebook(self) -> NotebookNode:
        """The solved notebook, not executed."""
        return read_source(self.source)

    @property
    def build(self) -> str:
        return self.notebook.metadata["twophase"]["build"]

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """In order; the first is what stands before any heading."""
        return sections(self.notebook.cells)

    @property
    def minutes(self) -> int:
        """Of all its sections, reading and thinking included, without the optional parts."""
        return sum(section.minutes or 0 for section in self.sections)

    @property
    def extra_minutes(self) -> int:
        return sum(section.extra_minutes for section in self.sections)

    @cached_property
    def templates(self) -> Mapping[str, Template]:
        """The exercise cells by id, with their blanks."""
        found: dict[str, Template] = {}
        for cell in self.notebook.cells:
            exercise = exercise_of(cell)
            if exercise is None:
                continue
            if exercise in found:
                raise SourceError(f"exercise {exercise} has two cells in {self.source.name}; one exercise is one cell")
            found[exercise] = blanks.parse(cell.source, exercise)
        return found

    @cached_property
    def setup(self) -> tuple[str, ...]:
        """Source of the cells tagged `setup`: imports, constants, models. They run before every check of a grading."""
        return tuple(c.source for c in self.notebook.cells if c.cell_type == "code" and SETUP_TAG in tags(c))

    def exercise(self, exercise_id: str) -> Exercise:
        if exercise_id not in self.exercises:
            known = ", ".join(self.exercises)
            raise WorkbookError(f"lab {self.number} has no exercise {exercise_id!r}; it has {known}")
        return self.exercises[exercise_id]

    def is_open(self, exercise_id: str) -> bool:
        """Whether the learner writes the whole function or class."""
        template = self.templates.get(exercise_id)
        return template is not None and template.is_open

    def all_uses(self, exercise_id: str) -> tuple[str, ...]:
        """Ids of the exercises whose answers this one calls, directly or through another, in the lab's order.

        Raises:
            WorkbookError: one is not in this lab, or one calls this one in turn.
        """
        found: set[str] = set()
        new = {exercise_id}
        while new:
            new = {other for i in new for other in self.exercise(i).uses} - found
            found |= new
        if exercise_id in found:
            raise WorkbookError(f"exercise {exercise_id} uses itself, through others among {', '.join(sorted(found))}")
        return tuple(i for i in self.exercises if i in found)


@dataclass(frozen=True)
class Workbook:
    """A folder with `labs/` and `labsolutions/`.

    Attributes:
        package: Its subpackages, a chapter each, hold the exercises.
        answers: The package with the right and wrong answers, which are test data; those of another workbook are
            beside its exercises.
    """

    root: Path
    package: str = PACKAGE

    @property
    def answers(self) -> str:
        return ANSWERS if self.package == PACKAGE else self.package

    @staticmethod
    def find(start: Path | None = None) -> "Workbook":
        """The workbook that this folder is in, or else the one this package was installed from.

        Raises:
            WorkbookError: there is none.
        """
        package = os.environ.get(PACKAGE_VARIABLE, PACKAGE)
        if ROOT_VARIABLE in os.environ:
            return Workbook(Path(os.environ[ROOT_VARIABLE]), package)
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents, *Path(__file__).resolve().parents):
            if (folder / "labsolutions").is_dir():
                return Workbook(folder, package)
        raise WorkbookError(
            "no workbook here: no folder `labsolutions` above this folder or beside the installed package. "
            "Work inside a checkout of the repository."
        )

    def environment(self) -> dict[str, str]:
        """Environment variables by which another process finds this workbook."""
        return {ROOT_VARIABLE: str(self.root.resolve()), PACKAGE_VARIABLE: self.package}

    @cached_property
    def labs(self) -> Mapping[str, Lab]:
        """By number, '01'."""
        sources = sorted((self.root / "labsolutions").glob("[0-9][0-9]_*.py"))
        return {source.stem[:2]: Lab(source, self.package, self.answers) for source in sources}

    def lab(self, number: str) -> Lab:
        """The lab of a number, '1' or '01', or a name, '01_autoregression'."""
        digits = re.match(r"\d{1,2}(?!\d)", number)
        key = f"{int(digits[0]):02d}" if digits else number
        if key not in self.labs:
            raise WorkbookError(f"no lab {number[:40]!r}; there are {', '.join(self.labs) or 'none'} in {self.root}")
        return self.labs[key]

    def lab_of(self, exercise_id: str) -> Lab:
        return self.lab(exercise_id.partition(".")[0])
