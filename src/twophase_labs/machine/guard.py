"""Notices when code replaced what checks rely on: functions of torch, numpy and the clock, methods of tensors.

A check runs in the process of the answer that it judges, so what it uses could be replaced there, as `torch.sum = ...`
does by accident. A guard remembers the modules concerned before the learner's code runs, and puts back what changed.
Whoever is determined gets around it.
"""

import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

_STANDARD = "builtins time math random json os signal operator itertools functools statistics"
_NUMERIC = "numpy numpy.random numpy.linalg torch torch.nn.functional torch.linalg torch.testing torch.special"
MODULES = frozenset(f"{_STANDARD} {_NUMERIC} twophase_labs twophase_kernels".split())
LEARNERS_FILES = "<exercise "
# Notebooks replace the former themselves, and no check relies on them; Python and the workbook rebind the others.
IGNORED = frozenset(
    [
        "input",
        "print",
        "breakpoint",
        "exit",
        "quit",
        "help",
        "display",
        "get_ipython",
        "__builtins__",
        "__warningregistry__",
        "__annotations__",
    ]
)
# copyreg caches this in a class when an object of it is first copied.
IGNORED_IN_CLASSES = frozenset(["__slotnames__"])
CLASSES = (("torch", "Tensor"), ("torch", "Generator"), ("random", "Random"))

Snapshot = tuple[tuple[str, Any], ...]


class Guard:
    """A snapshot of what is imported when it is made."""

    def __init__(self, *packages: str) -> None:
        """`packages`: also watch the loaded modules under these names (a lab's exercises)."""
        under = tuple(f"{package}." for package in ("twophase_labs", *packages))
        names = {n for n in sys.modules if n in MODULES or n in packages or n.startswith(under)}
        watched = [sys.modules[name] for name in sorted(names)]
        own = [module for module in watched if module.__name__.startswith(under)]
        self._modules = [(module, _names_of(module, module in own)) for module in watched]
        # Added attributes count too in a class: they hide those of its C base.
        classes = [vars(sys.modules[module])[name] for module, name in CLASSES if module in sys.modules]
        classes += [v for m in own for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__]
        self._classes: list[tuple[type, Snapshot]] = [(cls, tuple(vars(cls).items())) for cls in classes]

    def replaced(self) -> list[str]:
        """Names of what is no longer what it was, 'torch.equal'."""
        found = [
            f"{module.__name__}.{name}"
            for module, before in self._modules
            for name, value in before
            if not _is_same(vars(module).get(name), value)
        ]
        found += [m.__name__ for m, _ in self._modules if sys.modules.get(m.__name__) is not m]
        for cls, before in self._classes:
            was, now = dict(before), dict(vars(cls))
            names = (now.keys() | was.keys()) - IGNORED_IN_CLASSES
            changed = {n for n in names if not _is_same(now.get(n), was.get(n))}
            found += [f"{cls.__module__}.{cls.__qualname__}.{name}" for name in sorted(changed)]
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


def _names_of(module: ModuleType, is_own: bool) -> Snapshot:
    """Public names; of the workbook's own modules private ones as well. Libraries rebind theirs."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if name not in IGNORED and (is_own or not name.startswith("_"))
    )


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
