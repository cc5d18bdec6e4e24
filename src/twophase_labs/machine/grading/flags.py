"""Where to look twice: code that is, or reads, a solution, reaches into the machinery, or starts something.

Found in the source alone, so it can be hidden from, and an innocent notebook can have it. A flag changes no points; it
tells a lecturer which cell to read. What the lab's own cells do is flagged nowhere.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache

import twophase_labs
from twophase_labs.machine.grading.locate import Cell, code_cells
from twophase_labs.machine.lab import Lab

PRINTED = "is the printed solution"
SOLUTION = "reads a solution"
MACHINERY = "reaches into the machinery"
PROCESS = "starts or ends processes"
SYSTEM = "looks at the system's processes"
NETWORK = "uses the network"
TEXT = "runs code made of text"

# Dotted names with the aliases of imports resolved, '?' for what is no module; `*` is any text.
NAMES = {
    SOLUTION: "labsolutions* tests.* *.exercises.* reference() use()",
    MACHINERY: (
        "twophase_labs.* gc gc.* ctypes ctypes.* linecache* builtins builtins.* atexit atexit.* signal signal.* "
        "sys._getframe sys._current_frames sys.modules sys.meta_path sys.settrace sys.setprofile inspect.stack "
        "inspect.currentframe object.__setattr__ *.f_back *.f_locals *.f_globals *.tb_frame *.gi_frame *.__code__ "
        "*.__closure__ *.__globals__ *.__builtins__ *.__subclasses__ *.__self__ sys.[*] _ctypes*"
    ),
    PROCESS: (
        "subprocess* multiprocessing* torch.multiprocessing* concurrent.futures.Process* os.[*] posix posix.* pty* "
        "os.fork* os.exec* os.spawn* os.posix_spawn* os.system os.popen os.kill os.killpg os._exit os.setsid "
    ),
    NETWORK: "socket socket.* socketserver* http http.* urllib urllib.* requests requests.* httpx* aiohttp* ftplib*",
    TEXT: "exec eval compile __import__ importlib* runpy* marshal* pickle.load* types.FunctionType types.CodeType",
}
# In strings, which paths and `getattr` need.
STRINGS = {
    SOLUTION: r"labsolutions|\banswers_\w",
    MACHINERY: r"^twophase_labs\.\w|^_getframe$|^__(?:code|closure|globals|builtins|subclasses)__$",
    SYSTEM: r"/proc\b",
}
# A lab's cells take these from the machine, and a kernel may call any function of theirs.
TRITON = {
    "twophase_labs.machine.kernels.tl": "triton.language",
    "twophase_labs.machine.kernels.triton": "triton",
}
BUILTINS = frozenset(("exec", "eval", "compile", "__import__"))  # called or not: `run = exec`, `@eval`
MODULE_OF = {kind: re.compile("|".join(map(translate, names.split()))) for kind, names in NAMES.items()}
IN_STRING = {kind: re.compile(pattern) for kind, pattern in STRINGS.items()}
FOR_LEARNERS = frozenset(f"twophase_labs.{name}" for name in twophase_labs.__all__)
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
    """Of all cells that a learner wrote or changed, by kind and in order."""
    own = _own_cells(lab)
    modules = _modules([*own, *cells])
    known = FOR_LEARNERS | {name for cell in own for name in _names(cell, modules)}
    untouched = {cell.source.strip() for cell in own}
    found = set()
    for cell in cells:
        found |= {Flag(PRINTED, cell.number, what) for what in _copied(cell, lab)}
        if cell.source.strip() in untouched:
            continue
        for name in _names(cell, modules) - known:
            found |= {Flag(k, cell.number, name[:MAX_NAME]) for k, pattern in MODULE_OF.items() if pattern.match(name)}
        for text in _strings(cell):
            found |= {Flag(k, cell.number, repr(text[:MAX_NAME])) for k, p in IN_STRING.items() if p.search(text)}
    return sorted(found)


def _copied(cell: Cell, lab: Lab) -> Iterator[str]:
    """Exercises whose printed solution the cell holds, '3.3' or '3.3, names changed': the whole of its code.

    Comments, docstrings and annotations are not compared, nor exercises that leave little to write.
    """
    for i, (written, solution, renamed) in _solutions(lab).items():
        if cell.tree is not None and written >= MIN_COPIED and set(lab.exercises[i].names) <= cell.names:
            if _shape(cell.tree, keep_names=True) == solution:
                yield i
            elif _shape(cell.tree, keep_names=False) == renamed:
                yield f"{i}, names changed"


@cache
def _solutions(lab: Lab) -> Mapping[str, tuple[int, str, str]]:
    """By exercise: how many words and signs a learner writes, and the shape of the solution, with names and without."""
    found = {}
    for i in lab.exercises:
        filled = ast.parse(lab.templates[i].filled())
        written = sum(len(re.findall(r"\w+|[^\w\s]", blank.answer)) for blank in lab.templates[i].blanks)
        found[i] = (written, _shape(filled, keep_names=True), _shape(filled, keep_names=False))
    return found


def _shape(tree: ast.Module, *, keep_names: bool) -> str:
    """The code as one text; without names, each is its number in the order in which they appear."""
    numbers: dict[str, int] = {}
    parts: list[str] = []

    def visit(node: ast.AST) -> None:
        parts.append(type(node).__name__)
        for field, value in ast.iter_fields(node):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    if field not in ("annotation", "returns") and not _is_docstring(item):
                        visit(item)
                elif isinstance(item, str) and field in ("id", "arg", "name") and not keep_names:
                    parts.append(f"name {numbers.setdefault(item, len(numbers))}")
                elif item is not None and field not in ("kind", "type_comment"):
                    parts.append(repr(item))

    visit(tree)
    return " ".join(parts)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _own_cells(lab: Lab) -> tuple[Cell, ...]:
    """The lab's cells as solved, and those with blanks."""
    blank = [Cell(0, template.shipped(), exercise) for exercise, template in lab.templates.items()]
    filled = [Cell(0, template.filled(), exercise) for exercise, template in lab.templates.items()]
    return (*code_cells(lab.notebook), *filled, *blank)


def _modules(cells: Sequence[Cell]) -> dict[str, str]:
    """What imports bind: {'sp': 'subprocess', 'fork': 'os.fork'}."""
    found: dict[str, str] = {}
    for cell in cells:
        for node in cell.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:  # without `as`, `import a.b` binds `a`
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    found[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: TRITON.get(module, module) for name, module in found.items()}


def _names(cell: Cell, modules: Mapping[str, str]) -> set[str]:
    """Dotted names of all that a cell imports and looks up, 'os.fork', and of what it calls, 'reference()'."""
    found: set[str] = set()
    for node in cell.nodes:
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            case ast.Attribute():
                found.add(_dotted(node, modules))
            case ast.Name() if node.id in modules or node.id in BUILTINS:
                found.add(modules.get(node.id, node.id))
            case ast.Call():
                found.add(_called(node, modules))
    return found if _is_answer(cell) else found - {"use()"}


def _called(node: ast.Call, modules: Mapping[str, str]) -> str:
    """'exec()', and 'reference()' under whatever name it was imported; '' of other objects' methods."""
    function = node.func
    name = _dotted(function, modules) if isinstance(function, ast.Attribute) else ""
    name = modules.get(function.id, function.id) if isinstance(function, ast.Name) else name
    name = name.removeprefix("twophase_labs.")
    return f"{name}()" if name.isidentifier() else ""


def _is_answer(cell: Cell) -> bool:
    """Whether `use` has no place in it: in a measuring cell, which defines nothing, it is what it is for."""
    defined = cell.tree.body if cell.tree is not None else []
    return cell.exercise is not None or any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in defined)


def _dotted(node: ast.Attribute, modules: Mapping[str, str]) -> str:
    """'os.fork' of `o.fork` after `import os as o`; '?.fork' of any other object's."""
    parts: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute) and len(parts) < 8:
        parts.append(value.attr)
        value = value.value
    name = value.id if isinstance(value, ast.Name) else ""
    root = "object" if name == "object" else modules.get(name, "?")
    name = ".".join([root, *reversed(parts)])
    # 'torch.os.fork' is 'os.fork': a module holds those that it has imported.
    inner = [at for at, part in enumerate(name.split(".")[:-1]) if at and part in sys.stdlib_module_names]
    return ".".join(name.split(".")[inner[-1] :]) if inner and root != "?" else name


def _strings(cell: Cell) -> Iterator[str]:
    for node in cell.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
