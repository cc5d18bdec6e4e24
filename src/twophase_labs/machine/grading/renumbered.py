"""Notebooks of a lab's first edition, whose exercises had other numbers: their answers count for what was kept.

An exercise says what it was (`Exercise.was`). The cells of an old notebook are read with today's numbers: tags, blanks,
`check("1.18")` and its kin, variables such as `answer_1_18`. What is no longer asked gets a name that nothing asks for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twophase_labs.machine.grading.locate import Cell
from twophase_labs.machine.lab import Lab, edition_of

CALL = re.compile(
    r"\b(?P<call>(?:____|check|hint|measured|reference|reveal|use)\(\s*)(?P<quote>['\"])(?P<id>\d+\.\d+)\2"
)
BLANK = re.compile(r"\b____\(\s*['\"](?P<id>\d+\.\d+)['\"]\s*(?:,\s*(?P<number>\d+))?")
VARIABLE = re.compile(r"\b(?P<what>answer|guess)_(?P<chapter>\d+)_(?P<number>\d+)\b")


@dataclass(frozen=True)
class OldNotebook:
    """A notebook of the first edition, as cells of today's.

    Attributes:
        gone: Ids, of the first edition, that are no longer in the course.
        new: Today's ids that the first edition did not have.
    """

    cells: tuple[Cell, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def warning(self) -> str:
        """For the report."""
        text = "This is a notebook of the first edition: its answers count for the exercises that were kept."
        return f"{text} No longer in the course, and worth no points: {', '.join(self.gone)}." if self.gone else text


def as_old_notebook(notebook: Mapping[str, Any], cells: Sequence[Cell], lab: Lab) -> OldNotebook | None:
    """None if the notebook is of today's edition, or the lab was never renumbered."""
    if not lab.was:
        return None
    note = notebook.get("metadata", {}).get("twophase") if isinstance(notebook.get("metadata"), dict) else None
    if edition_of(notebook) >= lab.edition:
        return None
    old = _translated(cells, lab)
    # Without the lab's note, which a tool may have dropped, its answers tell.
    return old if isinstance(note, dict) or _num_fitting(old.cells, lab) > _num_fitting(cells, lab) else None


def _num_fitting(cells: Sequence[Cell], lab: Lab) -> int:
    known = ((cell, lab.exercises.get(cell.exercise or "")) for cell in cells)
    return sum(exercise is not None and cell.own_names.issuperset(exercise.names) for cell, exercise in known)


def _translated(cells: Sequence[Cell], lab: Lab) -> OldNotebook:
    today = {**_kept_under_its_id(cells, lab), **lab.was}
    tagged = dict.fromkeys(cell.exercise for cell in cells if cell.exercise is not None)
    gone = tuple(i for i in tagged if i not in today and i.partition(".")[0] == str(int(lab.number)))
    new = tuple(i for i in lab.exercises if i not in today.values())
    return OldNotebook(tuple(_cell(cell, today, lab) for cell in cells), gone, new)


def _kept_under_its_id(cells: Sequence[Cell], lab: Lab) -> dict[str, str]:
    """Code that says nothing of what it was, and yet has the function and the number of the first edition."""
    silent = [e for e in lab.exercises.values() if not e.was and e.is_code and e.id not in lab.was]
    return {e.id: e.id for e in silent for c in cells if c.exercise == e.id and c.own_names.issuperset(e.names)}


def _cell(cell: Cell, today: Mapping[str, str], lab: Lab) -> Cell:
    chapter = str(int(lab.number))

    def id_of(old: str) -> str:
        return today.get(old, f"{old} of the first edition") if old.partition(".")[0] == chapter else old

    def call(match: re.Match[str]) -> str:
        return f"{match['call']}{match['quote']}{id_of(match['id'])}{match['quote']}"

    def variable(match: re.Match[str]) -> str:
        if match["chapter"] != chapter:
            return match[0]
        exercise = lab.exercises.get(today.get(f"{chapter}.{match['number']}", ""))
        if exercise is None:
            return f"{match[0]}_of_the_first_edition"
        return match[0] if exercise.is_code else exercise.names[0]

    source = VARIABLE.sub(variable, CALL.sub(call, cell.source))
    exercise = None if cell.exercise is None else today.get(cell.exercise)
    return replace(cell, source=source, exercise=exercise, is_untouched=_is_untouched(cell))


def _is_untouched(cell: Cell) -> bool:
    """Whether all blanks are left, as far as a cell can tell whose original is gone: none before one that is."""
    left = {int(match["number"] or 1) for match in BLANK.finditer(cell.source) if match["id"] == cell.exercise}
    return bool(left) and left == set(range(1, max(left) + 1))
