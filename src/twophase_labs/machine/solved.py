"""The reference's answers: the solved cells of a lab, run."""

from types import ModuleType
from typing import Any

from twophase_labs.machine.judge import run_cell
from twophase_labs.machine.lab import Lab, WorkbookError


def run_setup(lab: Lab, name: str = "setup") -> ModuleType:
    """A fresh module in which the lab's setup cells have run, as they would in a learner's notebook."""
    module = ModuleType(name)
    run_setup_in(lab, vars(module))
    return module


def run_setup_in(lab: Lab, namespace: dict[str, Any]) -> None:
    for number, source in enumerate(lab.setup, start=1):
        _run(lab, source, namespace, f"<setup {number}>")


def run_reference(lab: Lab) -> dict[str, Any]:
    """The namespace of setup cells and every solved exercise cell, in order."""
    namespace = vars(run_setup(lab, f"reference{lab.number}"))
    for exercise, template in lab.templates.items():
        _run(lab, template.filled(), namespace, f"<reference {exercise}>")
    return namespace


def _run(lab: Lab, source: str, namespace: dict[str, Any], filename: str) -> None:
    try:
        run_cell(source, namespace, filename)
    except Exception as error:
        raise WorkbookError(f"lab {lab.number}, {filename}: the workbook's own cell raised {error!r}") from error
