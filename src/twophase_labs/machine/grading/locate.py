"""Which cell of a notebook file answers which exercise: cells get deleted, copied, moved and renamed."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from twophase_labs.machine.blanks import Template
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.grading.files import NotGradableError, source_of
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError, exercise_of
from twophase_labs.machine.lint import handed_out, names_bound

NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # a lone surrogate; brackets nested without end
OTHER_LANGUAGES = r"(?:bash|sh|script|cmd|html|HTML|javascript|js|latex|markdown|svg|SVG|perl|ruby|writefile|file)\b"


@dataclass(frozen=True)
class Cell:
    """A code cell. `number` counts all cells of the notebook from 1, as a learner would."""

    number: int
    source: str
    exercise: str | None

    @cached_property
    def tree(self) -> ast.Module | None:
        return parsed(self.source)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree)) if self.tree is not None else ()

    @cached_property
    def names(self) -> frozenset[str]:
        """What its top level defines."""
        return frozenset(names_bound(self.tree.body) if self.tree is not None else ())

    @cached_property
    def own_names(self) -> frozenset[str]:
        """Those of them that are not merely handed out: `greedy = use("1.3")` answers nothing."""
        body = self.tree.body if self.tree is not None else []
        return frozenset(names_bound(node for node in body if not handed_out([node])))

    def defines(self, name: str) -> bool:
        if self.tree is not None:
            return name in self.own_names
        return re.search(rf"^(def|class)\s+{name}\b|^{name}\s*[:=]", self.source, re.MULTILINE) is not None


def parsed(source: str) -> ast.Module | None:
    """The syntax tree; None of what is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except NOT_PYTHON:
        return None


def code_cells(notebook: Mapping[str, Any]) -> list[Cell]:
    """Its code cells as Python; cells that are malformed are passed over."""
    found = []
    for number, cell in enumerate(notebook["cells"], start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            metadata = cell if isinstance(cell.get("metadata"), dict) else {}
            source = as_python(source_of(cell))
            found.append(Cell(number, source, exercise_of(metadata)))
    return found


def as_python(source: str) -> str:
    """A cell without what only a notebook understands; lines keep their numbers.

    That is `%time f()`, `!ls`, `files = !ls`, `name?` and `await` outside a function. Where it is an experiment, the
    rest of the cell counts; Python itself would take none of it.
    """
    tree = parsed(source)
    if tree is None:
        source = re.sub(rf"\A\s*%%{OTHER_LANGUAGES}.*", "pass", source, flags=re.DOTALL)
        source = re.sub(r"\A(\s*)%%.*", r"\1pass", source)
        source = re.sub(r"^([ \t]*)(?:%[A-Za-z]|![^=]|\?{1,2}\w).*$", r"\1pass", source, flags=re.MULTILINE)
        source = re.sub(r"^([ \t]*\w[\w, ]*=[ \t]*)[%!][A-Za-z].*$", r"\1None", source, flags=re.MULTILINE)
        source = re.sub(r"^([ \t]*)[\w.*%]+\?{1,2}[ \t]*$", r"\1pass", source, flags=re.MULTILINE)
        tree = parsed(source)
    lines = source.split("\n")
    for node in tree.body if tree is not None and re.search("await|async", source) else ():
        if any(isinstance(part, ast.Await | ast.AsyncFor | ast.AsyncWith) for part in _outside_functions(node)):
            assert node.end_lineno is not None
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = "pass"
    return "\n".join(lines)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs when the statement does."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield part
            waiting += ast.iter_child_nodes(part)


def which_lab(notebook: Mapping[str, Any], cells: Sequence[Cell], path: Path, workbook: Workbook) -> Lab:
    """By the notebook's own note of it, else its name, else the exercises in it.

    Raises:
        NotGradableError: it is none of the labs, or one without exercises.
    """
    metadata = notebook.get("metadata")
    note = metadata.get("twophase") if isinstance(metadata, dict) else None
    named = [note.get("lab")] if isinstance(note, dict) else []
    in_name = re.search(r"(?<!\d)(\d\d)_", path.name)
    named += [in_name[1]] if in_name else []
    named += [cell.exercise for cell in cells]
    for name in dict.fromkeys(name for name in named if isinstance(name, str)):
        try:
            lab = workbook.lab(name)
        except WorkbookError:
            continue
        if not lab.exercises:
            raise NotGradableError(f"{path} is lab {lab.number}, which has no exercises")
        return lab
    known = ", ".join(lab.name for lab in workbook.labs.values())
    raise NotGradableError(f"{path} is not one of the labs ({known})")


def older_build(notebook: Mapping[str, Any], lab: Lab) -> bool:
    metadata = notebook.get("metadata")
    note = metadata.get("twophase") if isinstance(metadata, dict) else None
    return not isinstance(note, dict) or note.get("build") != lab.build


def locate(exercise: Exercise, template: Template, cells: Sequence[Cell]) -> Cell | Verdict:
    """The cell that answers the exercise, or the verdict if there is none, there are several, or it is untouched."""
    tagged = [cell for cell in cells if cell.exercise == exercise.id]
    defining = [cell for cell in cells if all(cell.defines(name) for name in exercise.names)]
    # A cell that was replaced by `greedy = reference("1.3")` is found by its tag.
    defining = defining or [cell for cell in tagged if set(exercise.names) <= cell.names]
    different = {cell.source.strip() for cell in defining}
    if not defining:
        return _missing(exercise, tagged)
    if len(different) > 1:
        numbers = " and ".join(str(cell.number) for cell in defining[:4])
        reason = f"cells {numbers} both define {exercise.names[0]}, each differently"
        return Verdict(exercise.id, "error", reason, ("Keep the one you mean and delete the other.",))
    cell = defining[-1]
    if cell.source.strip() == template.shipped().strip():
        return Verdict(exercise.id, "not_attempted", "not attempted")
    return syntax_error(cell, exercise) or cell


def _missing(exercise: Exercise, tagged: Sequence[Cell]) -> Verdict:
    names = " and ".join(exercise.names)
    restore = f"`twophase labs show {exercise.id}` prints the cell as it was shipped."
    if tagged and tagged[0].tree is not None:
        instead = ", ".join(sorted(tagged[0].names)) or "nothing"
        reason = f"the exercise's cell ({tagged[0].number}) no longer defines {names}; it defines {instead}"
        return Verdict(exercise.id, "missing", reason, (f"Name it {names} again.", restore))
    error = syntax_error(tagged[0], exercise) if tagged else None
    return error or Verdict(
        exercise.id, "missing", f"no cell defines {names}; was the exercise's cell deleted?", (restore,)
    )


def syntax_error(cell: Cell, exercise: Exercise) -> Verdict | None:
    """The verdict on a cell that is not valid Python; None if it is."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(cell.source, f"cell {cell.number}", "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is None:  # a null character
            return Verdict(exercise.id, "error", f"cell {cell.number} is not valid Python: {error.msg}")
        line = (error.text or "").strip()
        where = (f"line {error.lineno} of the cell: {line}",) if line else ()
        reason = f"syntax error in line {error.lineno} of cell {cell.number}: {error.msg}"
        return Verdict(exercise.id, "error", reason, where)
    except NOT_PYTHON as error:
        why = str(error) or "it is nested too deeply"
        return Verdict(exercise.id, "error", f"cell {cell.number} is not valid Python: {why}")
    return None
