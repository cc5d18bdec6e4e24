"""Mutants: small planted bugs that the tests must notice.

A mutant is one text replacement in one module's source. It is loaded as a fresh module beside the real one, never in
its place, and handed to the same check that the real module passes. A check that accepts the mutant is too weak.
"""

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from tests.enforced_types import unchecked_types


@dataclass(frozen=True)
class Mutant:
    """A planted bug: in `module`, `old` (which must occur exactly once) becomes `new`.

    `through` names a module that imports from `module`, and is what the check is given instead.
    """

    name: str
    module: str
    old: str
    new: str
    through: str | None = None

    @property
    def checked_module(self) -> str:
        return self.through or self.module

    def load(self) -> ModuleType:
        """The mutated module; or a fresh copy of `through`, on top of the mutated module."""
        mutated = self._load_mutated()
        if self.through is None:
            return mutated
        original = sys.modules[self.module]
        sys.modules[self.module] = mutated
        try:
            path = Path(importlib.util.find_spec(self.through).origin)
            name = f"{self.through}__through_{self.name.replace(' ', '_')}"
            return _execute(name, self.through, path.read_text(), str(path))
        finally:
            sys.modules[self.module] = original

    def source(self) -> str:
        """The module's text with the bug in it.

        Raises:
            ValueError: `old` is no longer there, or there more than once.
        """
        path = Path(importlib.util.find_spec(self.module).origin)
        source = path.read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name!r}: {self.old!r} occurs {source.count(self.old)} times in {path.name}")
        return source.replace(self.old, self.new)

    def _load_mutated(self) -> ModuleType:
        """Import the mutated source under a name of its own."""
        mutated = self.source()
        name = f"{self.module}__mutant_{self.name.replace(' ', '_')}"
        filename = f"<mutant {self.name} of {self.module}>"
        # Triton reads a kernel's source through linecache.
        linecache.cache[filename] = (len(mutated), None, mutated.splitlines(keepends=True), filename)
        return _execute(name, self.module, mutated, filename)


def _execute(name: str, original: str, source: str, filename: str) -> ModuleType:
    """Run `source` as a module called `name`, in the package of `original`."""
    module = ModuleType(name)
    module.__file__ = filename
    module.__package__ = original.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


@contextmanager
def installed(module: ModuleType) -> Iterator[None]:
    """A mutant stands in for its module where that is imported while the engine runs (`doors.feature`)."""
    name = module.__name__.partition("__mutant_")[0]
    original = importlib.import_module(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        sys.modules[name] = original


PASSED: dict[tuple[object, ...], Callable[[ModuleType], None]] = {}  # checks, each kept alive, so ids stay its own


def prove_original_passes(check: Callable[[ModuleType], None], module: str) -> None:
    """Run `check` on the module as it is: once, however many mutants the check is run on."""
    function = check.func if isinstance(check, partial) else check
    given = [*check.args, *check.keywords.values()] if isinstance(check, partial) else []
    given += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    key = (module, getattr(function, "__code__", function), *map(id, given))
    if key not in PASSED:
        check(importlib.import_module(module))
        PASSED[key] = check


def is_killed(mutant: Mutant, check: Callable[[ModuleType], None]) -> str | None:
    """The first line of what `check` raised on the mutant, or None if it survived. Proves the original passes first.

    Raises:
        ValueError: The source has changed, so the mutant cannot be planted; that kills nothing.
    """
    prove_original_passes(check, mutant.checked_module)
    mutated = mutant.load()
    try:
        with unchecked_types():  # a class of a module loaded twice is another class, which would kill any mutant
            check(mutated)
    except (Exception, pytest.fail.Exception) as error:  # the latter: a `pytest.raises` that nothing was raised in
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


class KillTable:
    """Collected over a test session and printed at its end (see conftest.py).

    With `only_planted` each mutant's place is looked up and none is run.
    """

    rows: ClassVar[list[tuple[str, str, str | None]]] = []
    only_planted: ClassVar[bool] = False

    @classmethod
    def record(cls, mutant: Mutant, check: Callable[[ModuleType], None]) -> None:
        """Run the mutant, add a row, and fail if it survived."""
        if cls.only_planted:
            mutant.source()
            return
        how = is_killed(mutant, check)
        cls.rows.append((mutant.module, mutant.name, how))
        assert how is not None, f"mutant survived: {mutant.name} in {mutant.module}"
