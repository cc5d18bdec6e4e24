"""Tables of planted bugs, and how one is tried where it may take down its process."""

import importlib
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


def mutants_of(table: Table, package: str = KERNELS) -> list[Any]:
    """(check, mutant), as parameters of a test."""
    return [
        pytest.param(
            check,
            Mutant(name, f"{package}.{module}", old, new, *(f"{package}.{each}" for each in through)),
            id=f"{module}: {name}",
        )
        for (module, *through), rows in table.items()
        for name, old, new, check in rows
    ]


def noticing(table: Table, package: str = KERNELS) -> Callable[..., None]:
    """A test that each mutant of the table is noticed."""

    @pytest.mark.mutants
    @pytest.mark.parametrize(("check", "mutant"), mutants_of(table, package))
    def test(check: Check, mutant: Mutant) -> None:
        KillTable.record(mutant, check)

    return test


def record_there(compiling: Any, noticed: Callable[..., str | None], mutant: Mutant, *args: Any) -> None:
    """As KillTable.record, in the process that compiles: `noticed(mutant, *args)` says how it was noticed, if it was."""
    mutant.source()
    if KillTable.only_planted:
        return
    try:
        how = compiling.call(noticed, mutant, *args)
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
