"""Notices when code replaced what checks rely on: torch, numpy, the clock, the checks themselves.

In a notebook, and in the grader for the few exercises whose check must look into the answer, a check runs in the
process of that answer. So what a check uses could be replaced by the code it judges, by accident or on purpose. A guard
remembers the modules concerned before the learner's code runs, their functions' code and the judge's own objects, and
puts back what changed. This limits accidents; whoever is determined gets around it, and so a verdict says where its
check ran.
"""

import builtins
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

_STANDARD = "builtins time math random json os signal operator itertools functools statistics"
_NUMERIC = "numpy numpy.random numpy.linalg torch torch.nn.functional torch.linalg torch.testing torch.special"
MODULES = frozenset(f"{_STANDARD} {_NUMERIC} twophase_labs twophase_kernels".split())
LEARNERS_FILES = "<exercise "
# Notebooks replace these themselves, and no check relies on them.
IGNORED = frozenset(["input", "print", "breakpoint", "exit", "quit", "help", "display", "get_ipython"])
# copyreg caches this in a class when an object of it is first copied.
IGNORED_IN_CLASSES = frozenset(["__slotnames__"])
CLASSES = (("torch", "Tensor"), ("torch", "Generator"), ("random", "Random"))


# Rebound by Python or by the workbook itself.
NOT_WATCHED = frozenset(["__builtins__", "__warningregistry__", "__annotations__", "is_judging"])
# A new global of the references' module changes them only if it hides one of these.
HIDEABLE = frozenset(name for name in vars(builtins) if not name.startswith("_"))
Code = tuple[Any, Any, Any]
Snapshot = tuple[tuple[str, Any], ...]


class Guard:
    """A snapshot of what is imported when it is made. It consists of tuples, so that emptying it takes replacing it."""

    def __init__(self, *packages: str) -> None:
        """`packages`: also watch the loaded modules under these names (a lab's exercises)."""
        under = tuple(f"{package}." for package in ("twophase_labs", *packages))
        names = {n for n in sys.modules if n in MODULES or n in packages or n.startswith(under)}
        watched = [sys.modules[name] for name in sorted(names)]
        own = [module for module in watched if module.__name__.startswith(under)]
        self._modules = tuple((module, _names_of(module, module in own)) for module in watched)
        # Added attributes count too in a class: they hide those of its C base.
        classes = [vars(sys.modules[module])[name] for module, name in CLASSES if module in sys.modules]
        classes += [v for m in own for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__]
        self._classes: tuple[tuple[type, Snapshot], ...] = tuple((cls, tuple(vars(cls).items())) for cls in classes)
        holders = [*(before for _, before in self._modules), *(before for _, before in self._classes)]
        functions = {id(v): v for before in holders for _, v in before if isinstance(v, FunctionType)}
        self._codes = tuple((function, _code_of(function)) for function in functions.values())
        self._objects: tuple[tuple[Any, Snapshot], ...] = ()

    @classmethod
    def of_nothing(cls) -> "Guard":
        """Where no learner's code runs."""
        guard = cls.__new__(cls)
        guard._modules, guard._classes, guard._codes, guard._objects = (), (), (), ()
        return guard

    def watch(self, *objects: Any) -> None:
        """Also notice new values of these objects' attributes, or of a dictionary's items; and of this guard's own."""
        snapshots = [(found, tuple(_items_of(found).items())) for found in objects]
        own = tuple((name, value) for name, value in vars(self).items() if name != "_objects")
        self._objects = (*snapshots, (self, own))

    def replaced(self) -> list[str]:
        """Names of what is no longer what it was, 'torch.equal'."""
        found = [
            f"{module.__name__}.{name}"
            for module, before in self._modules
            for name, value in before
            if not _is_same(vars(module).get(name), value)
        ]
        for module, _ in self._modules:
            if sys.modules.get(module.__name__) is not module:
                found.append(module.__name__)
        for cls, before in self._classes:
            was, now = dict(before), dict(vars(cls))
            names = (now.keys() | was.keys()) - IGNORED_IN_CLASSES
            changed = {n for n in names if not _is_same(now.get(n), was.get(n))}
            found += [f"{cls.__module__}.{cls.__qualname__}.{name}" for name in sorted(changed)]
        for function, code in self._codes:
            if any(a is not b for a, b in zip(_code_of(function), code, strict=True)):
                found.append(f"{function.__module__}.{function.__qualname__}.__code__")
        for watched, before in self._objects:
            now = _items_of(watched)
            changed = {name for name, value in before if now.get(name, self) is not value}
            added = now.keys() - {name for name, _ in before} - {"_objects"}
            if isinstance(watched, dict):  # Triton's interpreter adds its own names to the globals of what it runs
                added &= HIDEABLE
            found += [f"{type(watched).__name__}.{name}" for name in sorted(changed | added)]
        return found

    def restore(self) -> None:
        for module, before in self._modules:
            sys.modules[module.__name__] = module
            vars(module).update(before)
        for cls, members in self._classes:
            for name in set(vars(cls)) - {name for name, _ in members}:
                delattr(cls, name)
            for name, value in members:
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)
        for function, (code, defaults, keywords) in self._codes:
            function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords
        for watched, before in self._objects:
            (watched if isinstance(watched, dict) else vars(watched)).update(before)


def _names_of(module: ModuleType, is_own: bool) -> Snapshot:
    """Public names; of the workbook's own modules private ones as well. Libraries rebind theirs."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if name not in IGNORED | NOT_WATCHED and (is_own or not name.startswith("_"))
    )


def _code_of(function: FunctionType) -> Code:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _items_of(watched: Any) -> dict[str, Any]:
    items: dict[str, Any] = watched if isinstance(watched, dict) else vars(watched)
    return {name: value for name, value in items.items() if name not in NOT_WATCHED}


def _is_same(now: Any, before: Any) -> bool:
    """Also if a library wrapped its own function: torch does so to manual_seed when its compiler is first imported."""
    if now is before:
        return True
    if not isinstance(now, FunctionType) or not callable(before):
        return False
    return inspect.unwrap(now) is inspect.unwrap(before) and not is_learners_file(now.__code__.co_filename)


def is_learners_file(filename: str) -> bool:
    """Whether code was compiled from a cell: by the grader, or by a notebook's kernel."""
    return filename.startswith(LEARNERS_FILES) or "ipykernel_" in filename
