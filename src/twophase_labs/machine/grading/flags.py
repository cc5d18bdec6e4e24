"""Where to look twice: code that is the printed solution, reads one, reaches into the machinery, or starts something.

Found in the text alone, so it can be hidden from, and an innocent notebook can have it. A flag changes no points; it
tells a lecturer which cell to read. What stands in the lab's own cells is flagged nowhere.
"""

import ast
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from twophase_labs.machine.grading.locate import Cell, code_cells
from twophase_labs.machine.lab import Lab

PRINTED = "is the printed solution"
SOLUTION = "reads a solution"
MACHINERY = "reaches into the machinery"
PROCESS = "starts or ends processes"
NETWORK = "uses the network"
TEXT = "runs code made of text"

IMPORTS = r"^[ \t]*(?:import|from)[ \t]+(?:{})\b.*"
SUSPECT = {
    SOLUTION: IMPORTS.format(r"labsolutions|tests|twophase_labs\.\w+\.exercises") + r"|labsolutions|\banswers_\w+",
    MACHINERY: (
        IMPORTS.format(r"gc|ctypes|linecache|builtins|atexit|signal|twophase_labs\.machine|twophase_labs\.\w+\.")
        + r"|\bsys\.(?:_getframe|_current_frames|modules|meta_path|settrace|setprofile)|\bobject\.__setattr__"
        r"|\binspect\.(?:stack|currentframe)|\.(?:f_back|f_locals|f_globals|tb_frame|gi_frame)\b"
        r"|__(?:code|closure|globals|builtins|subclasses|self)__"
    ),
    PROCESS: (
        IMPORTS.format(r"subprocess|multiprocessing|pty|posix|concurrent\.futures")
        + r"|\bos\.(?:fork|exec|spawn|posix_spawn|system|popen|kill|_exit|setsid)\w*|/proc\b"
        r"|\bfrom os import .*(?:fork|exec|spawn|system|popen|kill|_exit|\*)"
    ),
    NETWORK: IMPORTS.format(r"socket|socketserver|http|urllib|requests|httpx|aiohttp|ftplib"),
    TEXT: r"(?<![\w.])(?:exec|eval|compile|__import__)\s*\(|" + IMPORTS.format("importlib|runpy|marshal|pickle"),
}
PATTERNS = {kind: re.compile(pattern, re.MULTILINE) for kind, pattern in SUSPECT.items()}
MAX_NAME = 60
MIN_COPIED = 40  # words and signs that a learner writes: of fewer, two people write the same


@dataclass(frozen=True, order=True)
class Flag:
    """`what` of a kind, in the cell of that number: (PROCESS, 12, 'os.fork')."""

    kind: str
    cell: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} in cell {self.cell}"


def flags(cells: Sequence[Cell], lab: Lab) -> list[Flag]:
    """Of all cells, by kind and in order."""
    own = "\n".join(cell.source for cell in code_cells(lab.notebook))
    found = {Flag(PRINTED, cell.number, what) for cell in cells for what in _copied(cell, lab)}
    for cell in cells:
        for kind, pattern in PATTERNS.items():
            texts = {match[0].strip() for match in pattern.finditer(cell.source)}
            found |= {Flag(kind, cell.number, text[:MAX_NAME]) for text in texts if text not in own}
    return sorted(found)


def _copied(cell: Cell, lab: Lab) -> Iterator[str]:
    """Exercises whose printed solution the cell holds, '3.3' or '3.3, names changed': the whole of its code.

    Comments, docstrings and annotations are not compared, nor exercises that leave little to write.
    """
    for i, (written, solution) in _solutions(lab).items():
        if cell.tree is not None and written >= MIN_COPIED and set(lab.exercises[i].names) <= cell.names:
            shape = _shape(cell.tree)
            if shape == solution:
                yield i
            elif _without_names(shape) == _without_names(solution):
                yield f"{i}, names changed"


@cache
def _solutions(lab: Lab) -> Mapping[str, tuple[int, str]]:
    """By exercise: how many words and signs a learner writes, and the shape of the solution."""
    found = {}
    for i in lab.exercises:
        written = sum(len(re.findall(r"\w+|[^\w\s]", blank.answer)) for blank in lab.templates[i].blanks)
        found[i] = (written, _shape(ast.parse(lab.templates[i].filled())))
    return found


def _shape(tree: ast.Module) -> str:
    """The code as one text; '' of what is nested too deeply."""
    try:
        bare = copy.deepcopy(tree)
        for node in ast.walk(bare):
            for field in {"annotation", "returns"} & set(node._fields):
                setattr(node, field, None)
            if isinstance(body := getattr(node, "body", None), list):
                node.body = [part for part in body if not _is_docstring(part)]  # type: ignore[attr-defined]
        return ast.dump(bare)
    except RecursionError:
        return ""


def _without_names(shape: str) -> str:
    """Each name is its number in the order in which they appear."""
    numbers: dict[str, int] = {}
    return re.sub(r"\b(?:id|arg|name)=('\w+')", lambda found: str(numbers.setdefault(found[1], len(numbers))), shape)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
