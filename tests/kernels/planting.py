"""Tables of planted bugs, and how one is tried where it may take down its process."""

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ptx_emulator import EmulationError, emulated
from tests.mutation import KillTable, Mutant

KERNELS = "twophase_kernels"
Check = Callable[[ModuleType], None]
# By the module and (if it is another) the module that is checked: (name, old text, new text, check).
Table = dict[tuple[str, ...], list[tuple[str, str, str, Check]]]


def noticing(table: Table, package: str = KERNELS, there: Callable[..., str | None] | None = None, *given: Any) -> Any:
    """A test that each mutant of the table is noticed: here, or in the process that compiles (see `record_there`)."""

    mutants = [
        pytest.param(
            check,
            Mutant(name, f"{package}.{module}", old, new, *(f"{package}.{each}" for each in through)),
            id=f"{module}: {name}",
        )
        for (module, *through), rows in table.items()
        for name, old, new, check in rows
    ]

    @pytest.mark.mutants
    @pytest.mark.parametrize(("check", "mutant"), mutants)
    def test(request: pytest.FixtureRequest, check: Check, mutant: Mutant) -> None:
        if there is None:
            KillTable.record(mutant, check)
        else:
            record_there(request.getfixturevalue("compiling"), there, mutant, check, *given)

    return test


def edited(ptx: str, old: str, new: str = "", which: int | None = 0) -> str:
    """PTX in which a match of `old` is replaced: one of several, or (None) each."""
    found = list(re.finditer(old, ptx))
    for match in reversed(found if which is None else [found[which]]):
        ptx = ptx[: match.start()] + match.expand(new) + ptx[match.end() :]
    return ptx


def record_there(compiling: Any, there: Callable[..., str | None], mutant: Mutant, *args: Any) -> None:
    """As KillTable.record, in the process that compiles: `there(mutant, *args)` says how it was noticed, if it was."""
    mutant.source()
    if KillTable.only_planted:
        return
    try:
        how = compiling.call(there, mutant, *args)
    except RuntimeError as crashed:  # a wrong address, say
        how = str(crashed)
    KillTable.rows.append((mutant.module, mutant.name, how))
    assert how is not None, f"mutant survived: {mutant.name}"


def noticed_emulated(mutant: Mutant, check: Check, target: str) -> str | None:
    """What the emulator, or the comparison, says of the mutant; None if nothing. The original must pass."""
    with emulated(target):
        check(importlib.import_module(mutant.checked_module))
    try:
        with emulated(target):
            check(mutant.load())
    except (EmulationError, AssertionError) as error:
        return str(error).splitlines()[0]
    return None
