"""Lab 2's prefill kernel on the page, to look at while the decode kernel is written."""

from pathlib import Path

from twophase_labs.kit.open_engine import Excerpt
from twophase_labs.machine.lab import Workbook, exercise_of
from twophase_labs.machine.notebooks import nbformat

EXERCISE, NAME = "2.8", "02_prefill"
BEGIN = '    """One program'


def prefill_kernel(folder: Path | None = None) -> Excerpt:
    """The body of the kernel as it stands in `folder` / 02_prefill.ipynb; with its blanks if no such notebook is there.

    Args:
        folder: Where the learner's notebooks are; by default the notebook's own.
    """
    source, where = _own(folder or Path.cwd()), f"exercise {EXERCISE}, {NAME}.ipynb"
    if source is None:
        source, where = Workbook.find().lab("02").templates[EXERCISE].shipped(), f"exercise {EXERCISE}, with its blanks"
    begin = source.find(BEGIN)
    return Excerpt(where, source[max(0, begin) :])


def _own(folder: Path) -> str | None:
    """The cell in the notebook of lab 2; None if there is none to be read."""
    try:
        cells = nbformat.read(folder / f"{NAME}.ipynb", as_version=4).cells
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):  # missing, or no notebook
        return None
    return next((cell.source for cell in cells if exercise_of(cell) == EXERCISE), None)
