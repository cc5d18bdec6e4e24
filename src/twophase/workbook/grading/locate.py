"""Which cell of a notebook file answers which exercise: cells get deleted, copied, moved and renamed."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.core.errors import TwophaseError
from twophase.workbook.blanks import Template
from twophase.workbook.exercise import Exercise
from twophase.workbook.judge import Verdict
from twophase.workbook.lab import Lab, Workbook, WorkbookError, exercise_of
from twophase.workbook.lint import top_level_names


class NotGradableError(TwophaseError):
    """A file that cannot be graded; says why."""


@dataclass(frozen=True)
class Cell:
    """A code cell. `number` counts all cells of the notebook from 1, as a learner would."""

    number: int
    source: str
    exercise: str | None

    @property
    def tree(self) -> ast.Module | None:
        try:
            return ast.parse(self.source)
        except (SyntaxError, ValueError):
            return None

    def defines(self, name: str) -> bool:
        if self.tree is not None:
            return name in top_level_names(self.source)
        return re.search(rf"^(def|class)\s+{name}\b|^{name}\s*[:=]", self.source, re.MULTILINE) is not None


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook's JSON.

    Raises:
        NotGradableError: no file, empty, not JSON, or JSON that is no notebook.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotGradableError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise NotGradableError(f"{path} is a folder") from None
    except UnicodeDecodeError:
        raise NotGradableError(f"{path} is not a notebook: it is not even text") from None
    except OSError as error:
        raise NotGradableError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise NotGradableError(f"{path} is empty")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotGradableError(
            f"{path} is not a notebook: it is not valid JSON ({error}); was it saved whole?"
        ) from None
    if isinstance(data, dict) and "worksheets" in data:
        raise NotGradableError(f"{path} has a notebook format older than 4; open it in JupyterLab and save it")
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise NotGradableError(f"{path} is not a notebook: it is JSON without a list of cells")
    return data


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """Its code cells, magics taken out; cells that are malformed are passed over."""
    found = []
    for number, cell in enumerate(notebook["cells"], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        cell = cell if isinstance(cell.get("metadata"), dict) else {}
        found.append(Cell(number, without_magics(source), exercise_of(cell)))
    return found


def without_magics(source: str) -> str:
    """`%time f()` and `!ls` are no Python; lines keep their numbers."""
    source = re.sub(r"\A(\s*)%%.*", r"\1pass", source)
    return re.sub(r"^([ \t]*)[%!][A-Za-z].*$", r"\1pass", source, flags=re.MULTILINE)


def which_lab(notebook: dict[str, Any], path: Path, workbook: Workbook) -> Lab:
    """By the notebook's own note of it, else its name, else the exercises in it.

    Raises:
        NotGradableError: it is none of the labs, or one without exercises.
    """
    metadata = notebook.get("metadata")
    note = metadata.get("twophase") if isinstance(metadata, dict) else None
    named = [str(note.get("lab"))] if isinstance(note, dict) else []
    in_name = re.search(r"(?<!\d)(\d\d)_", path.name)
    named += [in_name[1]] if in_name else []
    named += [cell.exercise for cell in code_cells(notebook) if cell.exercise]
    for name in named:
        try:
            lab = workbook.lab(name)
        except WorkbookError:
            continue
        if not lab.exercises:
            raise NotGradableError(f"{path} is lab {lab.number}, which has no exercises")
        return lab
    known = ", ".join(lab.name for lab in workbook.labs.values())
    raise NotGradableError(f"{path} is not one of the labs ({known})")


def older_build(notebook: dict[str, Any], lab: Lab) -> bool:
    metadata = notebook.get("metadata")
    note = metadata.get("twophase") if isinstance(metadata, dict) else None
    return not isinstance(note, dict) or note.get("build") != lab.build


def locate(exercise: Exercise, template: Template, cells: Sequence[Cell]) -> Cell | Verdict:
    """The cell that answers the exercise, or the verdict if there is none, there are several, or it is untouched."""
    tagged = [cell for cell in cells if cell.exercise == exercise.id]
    defining = [cell for cell in cells if all(cell.defines(name) for name in exercise.names)]
    different = {cell.source.strip() for cell in defining}
    if not defining:
        return _missing(exercise, tagged)
    if len(different) > 1:
        numbers = " and ".join(str(cell.number) for cell in defining)
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
        instead = ", ".join(sorted(top_level_names(tagged[0].source))) or "nothing"
        reason = f"the exercise's cell ({tagged[0].number}) no longer defines {names}; it defines {instead}"
        return Verdict(exercise.id, "missing", reason, (f"Name it {names} again.", restore))
    error = syntax_error(tagged[0], exercise) if tagged else None
    return error or Verdict(
        exercise.id, "missing", f"no cell defines {names}; was the exercise's cell deleted?", (restore,)
    )


def syntax_error(cell: Cell, exercise: Exercise) -> Verdict | None:
    """The verdict on a cell that is not valid Python; None if it is."""
    try:
        compile(cell.source, f"cell {cell.number}", "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is None:  # a null character
            return Verdict(exercise.id, "error", f"cell {cell.number} is not valid Python: {error.msg}")
        line = (error.text or "").strip()
        where = (f"line {error.lineno} of the cell: {line}",) if line else ()
        reason = f"syntax error in line {error.lineno} of cell {cell.number}: {error.msg}"
        return Verdict(exercise.id, "error", reason, where)
    except (ValueError, RecursionError, MemoryError) as error:  # a lone surrogate; brackets nested without end
        return Verdict(exercise.id, "error", f"cell {cell.number} is not valid Python: {error}")
    return None


def helpers(cells: Sequence[Cell], lab: Lab, answers: Sequence[Cell]) -> list[str]:
    """Imports, functions, classes and plain constants of the cells a learner wrote or changed. They run with an answer.

    Measurements and experiments are not run, so neither is what they compute.
    """
    shipped = {cell.source.strip() for cell in lab.notebook.cells}
    asked = {name for exercise in lab.exercises.values() for name in exercise.names}
    found = []
    for cell in cells:
        if cell.tree is None or cell.source.strip() in shipped or cell in answers:
            continue
        for node in cell.tree.body:
            source = ast.unparse(node)
            if _is_definition(node) and not asked & top_level_names(source):
                found.append(source)
    return found


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
        except ValueError:
            return False
        return all(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
