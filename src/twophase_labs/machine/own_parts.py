"""A learner's functions, classes and kernels out of the notebooks of other labs.

`own_parts("ngram_draft", "PrefixStore")` reads the notebooks beside this one, runs their labs' setup and the cells that
answer these exercises (and what those use), and checks each. What passes is the learner's own; for the rest the
reference stands in, and the table says why.
"""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.grading.files import NotGradableError, parse_notebook, read_bytes
from twophase_labs.machine.grading.helpers import definitions, needed
from twophase_labs.machine.grading.locate import Cell, code_cells, locate
from twophase_labs.machine.grading.run_one import run_definitions
from twophase_labs.machine.judge import Verdict, learners_line, run_cell
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError
from twophase_labs.machine.session import Session, adopt
from twophase_labs.machine.solved import run_setup

HEADINGS = ("lab", "exercise", "names", "whose", "lines")


@dataclass(frozen=True)
class Part:
    """One exercise's answer.

    Attributes:
        values: Its objects by name.
        why_not: Why the reference stands in; '' for the learner's own.
        source: The cell: the learner's, or the solved one.
        cell: The learner's cell, counted from 1 in its notebook; 0 for the reference.
    """

    lab: str
    exercise: Exercise
    values: Mapping[str, Any]
    why_not: str
    source: str
    cell: int = 0

    @property
    def num_lines(self) -> int:
        return sum(bool(line.strip()) for line in self.source.splitlines())

    @property
    def row(self) -> tuple[str, ...]:
        whose = f"reference: {self.why_not}" if self.why_not else f"yours, cell {self.cell}"
        lines = "" if self.why_not else str(self.num_lines)
        return self.lab, self.exercise.id, ", ".join(self.exercise.names), whose, lines


class OwnParts(dict[str, Any]):
    """The objects by name; a notebook shows whose they are as a table. `parts` has them by exercise."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__({name: value for part in parts for name, value in part.values.items()})
        self.parts = tuple(parts)

    @property
    def yours(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if not part.why_not)

    def __repr__(self) -> str:
        rows = [HEADINGS, *(part.row for part in self.parts)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_markdown_(self) -> str:
        rows = [HEADINGS, ("---",) * 4 + ("---:",), *((*p.row[:2], f"`{p.row[2]}`", *p.row[3:]) for p in self.parts)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def own_parts(*names: str, folder: Path | None = None, workbook: Workbook | None = None) -> OwnParts:
    """The answers to the exercises that ask for these names, in the order of the labs.

    Args:
        folder: Of the notebooks; None: where this one runs.

    Raises:
        WorkbookError: No exercise asks for one of the names, or there are no labs.
    """
    workbook, folder = workbook or Workbook.find(), folder or Path.cwd()
    if not workbook.labs:
        raise WorkbookError(f"no labs found in {workbook.root / 'labsolutions'}")
    wanted, parts = set(names), list[Part]()
    for lab in workbook.labs.values():
        asked = [exercise for exercise in lab.exercises.values() if exercise.is_code and wanted & set(exercise.names)]
        if asked:
            parts += _of_lab(lab, asked, folder / f"{lab.name}.ipynb")
            wanted -= {name for exercise in asked for name in exercise.names}
    if wanted:
        raise WorkbookError(f"no exercise asks for {', '.join(sorted(wanted))}")
    return OwnParts(parts)


def _of_lab(lab: Lab, asked: Sequence[Exercise], notebook: Path) -> list[Part]:
    session = Session(lab, notebook.parent)
    adopt(session)  # for a helper cell that says `use("3.4")`
    try:
        cells, problem = code_cells(parse_notebook(read_bytes(notebook), notebook)), ""
    except NotGradableError as error:
        cells, problem = [], str(error)
    found = {i: locate(exercise, lab.templates[i], cells) for i, exercise in lab.exercises.items()}
    answers = {i: cell for i, cell in found.items() if isinstance(cell, Cell)}
    defined = definitions(cells, lab, answers)
    namespace, parts = vars(run_setup(lab, f"yours{lab.number}")), list[Part]()
    closure = {other for exercise in asked for other in (exercise.id, *lab.all_uses(exercise.id))}
    for i in (i for i in lab.exercises if i in closure):
        exercise, cell = lab.exercises[i], found[i]
        why_not = problem
        if not problem:
            why_not = cell.reason if isinstance(cell, Verdict) else _run(session, exercise, cell, defined, namespace)
        values = {name: session.references[name] if why_not else namespace[name] for name in exercise.names}
        namespace.update(values)
        if exercise in asked:
            own = None if why_not or isinstance(cell, Verdict) else cell
            source = own.source if own else lab.templates[i].filled()
            parts.append(Part(lab.number, exercise, values, why_not, source, own.number if own else 0))
    return parts


def _run(session: Session, exercise: Exercise, cell: Cell, defined: Any, namespace: dict[str, Any]) -> str:
    """Run the answer and check it; the reason if it does not pass."""
    helpers, aliases = needed(defined, [cell.source], cell, exercise.names)
    run_definitions(helpers, namespace)
    with redirect_stdout(None):  # `use` says whose it gives
        run_definitions(aliases, namespace)
    try:
        run_cell(cell.source, namespace, f"<exercise {exercise.id}>")
    except Exception as error:
        said = str(error).partition("\n")[0]
        return f"its cell raises {type(error).__name__}: {said}{_at(learners_line(error))}"
    verdict = session.verdict(exercise, namespace)
    if verdict.passed:
        return ""
    line = next((detail for detail in verdict.details if detail.startswith("line ")), "")
    return f"{verdict.reason}{_at(line)}"


def _at(line: str) -> str:
    """' (line 7 of the cell)' of 'line 7 of the cell: x = y[3]', '' of ''."""
    return f" ({line.partition(':')[0]})" if line else ""
