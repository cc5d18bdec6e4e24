"""Notices when code replaced what checks rely on: torch, numpy, the clock, the checks themselves.

The check of an answer runs in the process of that answer, since a learner's function must be able to drive the real
engine. So what a check uses could be replaced by the code it judges, by accident or on purpose. A guard remembers
every public attribute of the modules concerned before the learner's code runs, and puts back what changed. This limits
accidents; whoever is determined gets around it.
"""

import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

_STANDARD = "builtins time math random json os signal operator itertools functools statistics"
_NUMERIC = "numpy numpy.random numpy.linalg torch torch.nn.functional torch.linalg torch.testing torch.special"
MODULES = frozenset(f"{_STANDARD} {_NUMERIC} twophase.workbook twophase_kernels".split())
LEARNERS_FILES = "<exercise "
# Notebooks replace these themselves, and no check relies on them.
IGNORED = frozenset(["input", "print", "breakpoint", "exit", "quit", "help", "display", "get_ipython"])
# copyreg caches this in a class when an object of it is first copied.
IGNORED_IN_CLASSES = frozenset(["__slotnames__"])
CLASSES = (("torch", "Tensor"), ("torch", "Generator"), ("random", "Random"))


class Guard:
    """A snapshot of what is imported when it is made."""

    def __init__(self, *packages: str) -> None:
        """`packages`: also watch the loaded modules under these names (a lab's exercises)."""
        under = tuple(f"{package}." for package in ("twophase.workbook", *packages))
        names = {n for n in sys.modules if n in MODULES or n in packages or n.startswith(under)}
        watched = [sys.modules[name] for name in sorted(names)]
        self._modules: list[tuple[ModuleType, dict[str, Any]]] = [
            (module, {k: v for k, v in vars(module).items() if k not in IGNORED and not k.startswith("_")})
            for module in watched
        ]
        # Added attributes count too in a class: they hide those of its C base.
        classes = [vars(sys.modules[module])[name] for module, name in CLASSES if module in sys.modules]
        own = [module for module in watched if module.__name__.startswith(under)]
        classes += [v for m in own for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__]
        self._classes: list[tuple[type, dict[str, Any]]] = [(cls, dict(vars(cls))) for cls in classes]

    @classmethod
    def of_nothing(cls) -> "Guard":
        """Where no learner's code runs."""
        guard = cls.__new__(cls)
        guard._modules, guard._classes = [], []
        return guard

    def replaced(self) -> list[str]:
        """Names of what is no longer what it was, 'torch.equal'."""
        found = [
            f"{module.__name__}.{name}"
            for module, before in self._modules
            for name, value in before.items()
            if not _is_same(vars(module).get(name), value)
        ]
        for module, _ in self._modules:
            if sys.modules.get(module.__name__) is not module:
                found.append(module.__name__)
        for cls, before in self._classes:
            now = dict(vars(cls))
            names = (now.keys() | before.keys()) - IGNORED_IN_CLASSES
            changed = {n for n in names if not _is_same(now.get(n), before.get(n))}
            found += [f"{cls.__module__}.{cls.__qualname__}.{name}" for name in sorted(changed)]
        return found

    def restore(self) -> None:
        for module, before in self._modules:
            sys.modules[module.__name__] = module
            vars(module).update(before)
        for cls, before in self._classes:
            for name in set(vars(cls)) - set(before):
                delattr(cls, name)
            for name, value in before.items():
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)


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
