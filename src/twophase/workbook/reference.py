"""The reference's answers: the solved cells of a lab, run."""

from types import ModuleType
from typing import Any

from twophase.workbook.judge import run_cell
from twophase.workbook.lab import Lab, WorkbookError


def run_setup(lab: Lab) -> dict[str, Any]:
    """A fresh namespace in which the lab's setup cells have run, as the learner's would be."""
    module = ModuleType(f"lab{lab.number}")
    for number, source in enumerate(lab.setup, start=1):
        _run(lab, source, vars(module), f"<setup {number}>")
    return vars(module)


def run_reference(lab: Lab) -> dict[str, Any]:
    """The namespace of setup cells and every solved exercise cell, in order."""
    namespace = run_setup(lab)
    for exercise, template in lab.templates.items():
        _run(lab, template.filled(), namespace, f"<reference {exercise}>")
    return namespace


def _run(lab: Lab, source: str, namespace: dict[str, Any], filename: str) -> None:
    try:
        run_cell(source, namespace, filename)
    except Exception as error:
        raise WorkbookError(f"lab {lab.number}, {filename}: the workbook's own cell raised {error!r}") from error
