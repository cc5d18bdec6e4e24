"""What an answer needs from other cells: definitions it mentions, and what those mention in turn.

Imports, functions, classes, plain constants and other names for an exercise's function count, from cells that a learner
wrote, and from the lab's own above the answer. `step = use("3.1")` becomes `step = decode_step`, which runs once the
exercise's cell, or the reference in its place, has defined that. Measurements and experiments are not run, so neither
is what they compute.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from twophase_labs.machine.grading.locate import NOT_PYTHON, Cell
from twophase_labs.machine.lab import SETUP_TAG, Lab, tags
from twophase_labs.machine.lint import names_bound


@dataclass(frozen=True)
class Definition:
    """A statement of a cell.

    Attributes:
        names: What it binds.
        is_shipped: It stands in the lab's own notebook.
        is_alias: It gives an exercise's function another name.
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
        for names, text, is_alias in _statements(cell, lab):
            if cell.number in answering or not asked & names:
                found.append(Definition(names, text, cell.number, source in shipped, is_alias))
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


def _statements(cell: Cell, lab: Lab) -> Iterator[tuple[frozenset[str], str, bool]]:
    """Names and source of each definition of a cell, and whether it is an alias."""
    assert cell.tree is not None
    lines = cell.source.encode(errors="replace").split(b"\n")
    for node in cell.tree.body:
        aliases = list(_aliases(node, lab))
        yield from ((frozenset([name]), f"{name} = {meant}", True) for name, meant in aliases)
        names = _names(node)
        if names and not aliases:
            yield names, _text(node, lines), False


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
        return frozenset(names_bound(ast.Module([node], [])))
    return frozenset()


def _aliases(node: ast.stmt, lab: Lab) -> Iterator[tuple[str, str]]:
    """('decode_kernel', 'paged_decode_kernel') of `decode_kernel = use("3.9")`, alone or among several."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    pairs = [(node.targets[0], node.value)]
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
    for target, value in pairs:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        meant = _used(value, lab)
        for name, its in zip(targets, meant, strict=False) if len(targets) == len(meant) else ():
            if isinstance(name, ast.Name) and name.id != its:  # under its own name it is there already
                yield name.id, its


def _used(value: ast.expr, lab: Lab) -> Sequence[str]:
    """Names of the exercise in `use("3.9")`; none if the expression is something else."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "use":
        match value.args:
            case [ast.Constant(value=str(exercise))] if exercise in lab.exercises:
                return lab.exercises[exercise].names
    return ()
