"""What an answer needs from other cells: definitions it mentions, and what those mention in turn.

Imports, functions, classes, plain constants and other names for an exercise's function count, from cells that a learner
wrote, and from the lab's own above the answer. `step = use("3.1")` runs once the exercise's cell, or the reference in
its place, has defined what it asks for. Measurements and experiments are not run, so neither is what they compute.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from twophase_labs.machine.grading.locate import NOT_PYTHON, Cell
from twophase_labs.machine.lab import SETUP_TAG, Lab, tags
from twophase_labs.machine.lint import handed_out, names_bound


@dataclass(frozen=True)
class Definition:
    """A statement of a cell.

    Attributes:
        names: What it binds.
        is_shipped: It stands in the lab's own notebook.
        is_alias: It gives what an exercise asks for another name.
    """

    names: frozenset[str]
    source: str
    cell: int
    is_shipped: bool
    is_alias: bool

    @property
    def words(self) -> set[str]:
        return words(self.source)


def words(source: str) -> set[str]:
    """Whatever could be a name, even in a string."""
    return set(re.findall(r"[^\W\d]\w*", source))


def definitions(cells: Sequence[Cell], lab: Lab, answers: Mapping[str, Cell]) -> list[Definition]:
    """All there are in a notebook, in order. What exercises ask for counts in the cells that answer them only."""
    code = [cell for cell in lab.notebook.cells if cell.cell_type == "code"]
    has_run = {cell.source.strip() for cell in code if SETUP_TAG in tags(cell)}
    shipped = {cell.source.strip() for cell in code}
    asked = {name for exercise in lab.exercises.values() for name in exercise.names}
    answering = {cell.number for cell in answers.values()}
    found = []
    for cell in cells:
        source = cell.source.strip()
        if cell.tree is None or source in has_run:
            continue
        lines = cell.source.encode(errors="replace").split(b"\n")
        for node in cell.tree.body:
            is_alias = _is_alias(node, lab)
            names = frozenset(names_bound([node])) if is_alias else _names(node)
            if names and (names.isdisjoint(asked) or (cell.number in answering and not is_alias)):
                found.append(Definition(names, _text(node, lines), cell.number, source in shipped, is_alias))
    return found


def needed(
    found: Sequence[Definition], sources: Collection[str], answer: Cell, taken: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those that the answer's sources call for, in order, and the aliases among them apart.

    Args:
        sources: The answer, and the exercises' cells that run with it.
        taken: Names that these define, or the reference in their place.
    """
    usable = [d for d in found if d.cell != answer.number and d.names.isdisjoint(taken)]
    usable = [d for d in usable if not d.is_shipped or d.cell < answer.number]
    by_name: dict[str, list[Definition]] = {}
    for definition in usable:
        for name in definition.names:
            by_name.setdefault(name, []).append(definition)
    wanted: set[str] = set()
    new = {"*"}.union(*map(words, sources))
    while new:
        wanted |= new
        new = {word for name in new for d in by_name.get(name, ()) for word in d.words} - wanted
    chosen = [d for d in usable if d.names & wanted]
    return tuple(d.source for d in chosen if not d.is_alias), tuple(d.source for d in chosen if d.is_alias)


def _text(node: ast.stmt, lines: list[bytes]) -> str:
    """As it was written: to write it anew from its tree takes a stack as deep as the tree."""
    first = min([node, *getattr(node, "decorator_list", [])], key=lambda part: part.lineno)
    assert node.end_lineno is not None
    cut = lines[first.lineno - 1 : node.end_lineno]
    cut[-1] = cut[-1][: node.end_col_offset]
    cut[0] = cut[0][first.col_offset if first is node else 0 :]
    return b"\n".join(cut).decode()


def _names(node: ast.stmt) -> frozenset[str]:
    """What a definition binds; nothing if it is none. '*' stands for names that only the import knows."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return frozenset(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return frozenset([node.name])
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
        try:
            ast.literal_eval(node.value)
        except (*NOT_PYTHON, TypeError):  # TypeError: a dictionary of lists as keys
            return frozenset()
        return frozenset(names_bound([node]))
    return frozenset()


def _is_alias(node: ast.stmt, lab: Lab) -> bool:
    """Whether it is `decode_kernel = use("3.9")`, or several such in one."""
    given = {name for name, exercise, call in handed_out([node]) if call == "use" and exercise in lab.exercises}
    return bool(given) and given == names_bound([node])
