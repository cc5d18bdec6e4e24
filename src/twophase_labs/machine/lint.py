"""Rules that a lab's source must keep, so that its notebooks run, can be graded and give nothing away."""

import ast
import re
from collections.abc import Iterable

from twophase_labs.machine import blanks
from twophase_labs.machine.lab import SETUP_TAG, Lab, exercise_of, tags
from twophase_labs.machine.notebooks import NotebookNode

SESSION_CALL = re.compile(r"^[^#\n]*\b(check|hint|measured|reference|reveal|use)\(", re.MULTILINE)
SKIP = re.compile(r"#\s*NBVAL_(SKIP|IGNORE_OUTPUT)|#\s*PYTEST_VALIDATE_IGNORE")


def problems(lab: Lab, learner: NotebookNode) -> list[str]:
    """What an author has to change, in words; none is good."""
    return [*_cells(lab), *_pairs(lab), *leaks(lab, learner)]


def _cells(lab: Lab) -> list[str]:
    found = []
    defined: dict[str, list[int]] = {}
    wanted = {name: e.id for e in lab.exercises.values() for name in e.names}
    for index, cell in enumerate(lab.notebook.cells):
        if cell.cell_type != "code":
            continue
        where = f"{lab.source.name}, cell {index}"
        found += [
            f"{where}: magics stop a cell that still passes: {line.strip()!r}"
            for line in cell.source.split("\n")
            if re.match(r"\s*[%!]", line)
        ]
        found += [f"{where}: {match[0]!r} hides a cell from the tests" for match in SKIP.finditer(cell.source)]
        if exercise_of(cell) is None and "SOLUTION" in cell.source:
            found.append(f"{where}: an answer is marked, but the cell has no tag exercise:ID")
        if SETUP_TAG in tags(cell) and (call := SESSION_CALL.search(cell.source)):
            found.append(f"{where}: a setup cell runs before any exercise is known, and cannot call {call[1]}")
        try:
            body = ast.parse(cell.source).body
            again = {name for name, i, call in handed_out(body) if call == "use" and i == wanted.get(name)}
            for name in names_bound(body) - again:
                defined.setdefault(name, []).append(index)
        except SyntaxError as error:
            found.append(f"{where}: not valid Python ({error})")
    return found + [
        f"{lab.source.name}: cells {', '.join(map(str, cells))} define {name}, which exercise {wanted[name]} asks for"
        for name, cells in defined.items()
        if name in wanted and len(cells) > 1
    ]


def _pairs(lab: Lab) -> list[str]:
    """Each exercise has a cell that defines its names and has blanks; each exercise cell has an exercise."""
    if not lab.has_exercises:
        return []
    found = []
    for exercise in lab.exercises.values():
        template = lab.templates.get(exercise.id)
        if template is None:
            found.append(f"{lab.source.name}: no cell has the tag exercise:{exercise.id}")
            continue
        absent = set(exercise.names) - names_bound(ast.parse(template.filled()).body)
        if absent:
            found.append(f"{lab.source.name}: the cell of {exercise.id} does not define {', '.join(sorted(absent))}")
        if not template.blanks:
            found.append(f"{lab.source.name}: the cell of {exercise.id} has no blank")
        lab.all_uses(exercise.id)
    strangers = [i for i in lab.templates if i not in lab.exercises]
    return found + [f"{lab.package} has no exercise {i}, whose cell is in {lab.source.name}" for i in strangers]


def leaks(lab: Lab, learner: NotebookNode) -> list[str]:
    """Solution lines and markers that a learner's notebook shows."""
    found = []
    for index, cell in enumerate(learner.cells):
        where = f"labs/{lab.name}.ipynb, cell {index}"
        if re.search(r"#\s*(BEGIN |END )?SOLUTION", cell.source):
            found.append(f"{where}: a SOLUTION marker")
        for exercise, template in lab.templates.items():
            found += [
                f"{where}: shows the solution of {exercise}: {line!r}"
                for line in blanks.solution_lines(template)
                if line in cell.source
            ]
    return found


def names_bound(body: Iterable[ast.stmt]) -> set[str]:
    """Names of the functions, classes and variables that statements define (imports are not definitions)."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def handed_out(body: Iterable[ast.stmt]) -> set[tuple[str, str, str]]:
    """(name, exercise, call) of what statements bind by `greedy = use("1.3")` or `reference`, alone or among others."""
    found: set[tuple[str, str, str]] = set()
    for node in body:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=False))
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
        for target, value in pairs:
            match value:
                case ast.Call(
                    func=ast.Name(id=("use" | "reference") as call), args=[ast.Constant(value=str(exercise))]
                ):
                    bound = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                    found |= {(name, exercise, call) for name in bound}
    return found
