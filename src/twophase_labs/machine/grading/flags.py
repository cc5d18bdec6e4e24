"""Where to look twice: code that reads solutions, reaches into the machinery, or starts something.

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
        "twophase_labs.* gc gc.* ctypes ctypes.* linecache linecache.* builtins builtins.* atexit atexit.* "
        "signal signal.* sys._getframe sys._current_frames sys.modules sys.meta_path sys.settrace sys.setprofile "
        "inspect.stack inspect.currentframe inspect.getouterframes inspect.getinnerframes inspect.trace __builtins__ "
        "object.__setattr__ *.f_back *.f_locals *.f_globals *.f_builtins *.tb_frame *.gi_frame *.cr_frame "
        "*.__code__ *.__closure__ *.__globals__ *.__builtins__ *.__subclasses__ *.__torch_function__ *.__self__ "
        "*.ag_frame sys.[*] inspect.[*] _ctypes* __loader__ __spec__ *.__loader__ *.__spec__ "
        "__torch_function__ __torch_dispatch__ __instancecheck__"
    ),
    PROCESS: (
        "subprocess subprocess.* multiprocessing multiprocessing.* torch.multiprocessing* concurrent.futures.Process* "
        "os.[*] posix posix.* _posixsubprocess* "
        "pty pty.* os.fork* os.exec* os.spawn* os.posix_spawn* os.system os.popen os.kill os.killpg os._exit os.setsid "
        "asyncio.create_subprocess*"
    ),
    NETWORK: (
        "socket socket.* socketserver* http http.* urllib urllib.* requests requests.* httpx* aiohttp* ftplib* smtplib*"
    ),
    TEXT: (
        "exec eval compile __import__ importlib importlib.* runpy runpy.* marshal marshal.* pickle.load* code code.* "
        "types.FunctionType types.CodeType"
    ),
}
# In strings, which paths and `getattr` need.
STRINGS = {
    SOLUTION: r"labsolutions|\banswers_\w",
    MACHINERY: r"^twophase_labs\.\w|^_getframe$|^__(?:code|closure|globals|builtins|subclasses)__$",
    PROCESS: r"^(?:subprocess|multiprocessing)$",
    SYSTEM: r"/proc\b",
}
# A lab's cells take these from the machine, and a kernel may call any function of theirs.
TRITON = {
    "twophase_labs.machine.kernels.tl": "triton.language",
    "twophase_labs.machine.kernels.triton": "triton",
}
# Whether called or not: `run = exec`, `@eval`, `map(exec, texts)`.
BUILTINS = frozenset("exec eval compile __import__ __builtins__ __loader__ __spec__".split())  # noqa: SIM905
MODULE_OF = {kind: re.compile("|".join(map(translate, names.split()))) for kind, names in NAMES.items()}
IN_STRING = {kind: re.compile(pattern) for kind, pattern in STRINGS.items()}
FOR_LEARNERS = frozenset(f"twophase_labs.{name}" for name in twophase_labs.__all__)
MAX_NAME = 60


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
        if cell.source.strip() in untouched:
            continue
        for name in _names(cell, modules) - known:
            found |= {Flag(k, cell.number, name[:MAX_NAME]) for k, pattern in MODULE_OF.items() if pattern.match(name)}
        for text in _strings(cell):
            found |= {Flag(k, cell.number, repr(text[:MAX_NAME])) for k, p in IN_STRING.items() if p.search(text)}
    return sorted(found)


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
    """Dotted names of all that a cell imports and looks up, 'os.fork', and of what it calls, 'exec()'."""
    found: set[str] = set()
    for node in cell.nodes:
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            case ast.Attribute():
                found |= _tails(_dotted(node, modules))
            case ast.Name() if node.id in modules or node.id in BUILTINS:
                found.add(modules.get(node.id, node.id))
            case ast.Call():
                found.add(_called(node, modules))
            case ast.FunctionDef():
                found.add(node.name if node.name.startswith("__") else "")
    if not _is_answer(cell):
        found.discard("use()")
    return found


def _tails(name: str) -> set[str]:
    """'torch.os.fork' is 'os.fork' too: a module holds those that it has imported."""
    parts = name.split(".")
    starts = [at for at, part in enumerate(parts[:-1]) if at and part in sys.stdlib_module_names]
    return {name, *(".".join(parts[at:]) for at in starts if parts[0] != "?")}


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
    return ".".join([root, *reversed(parts)])


def _strings(cell: Cell) -> Iterator[str]:
    for node in cell.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
