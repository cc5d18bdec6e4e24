"""Source split into lines as Python counts them, and whose they are."""

import io

LEARNERS_FILES = "<exercise "  # as the grader names them
CELLS_FILES = ("ipykernel_", "ipython-input-")  # Jupyter; a plain IPython shell and hosted notebooks


def python_lines(source: str) -> list[str]:
    r"""Lines that agree with the numbers of `ast`: "\r\n" and "\r" end a line too, and come back as "\n".

    `str.splitlines` also ends a line at a form feed, a vertical tab, U+2028 and others; Python does not.
    """
    return io.StringIO(source, newline=None).readlines()


def is_learners_file(filename: str) -> bool:
    """Whether code was compiled from a cell: by the grader, or by a notebook's kernel."""
    return filename.startswith(LEARNERS_FILES) or any(name in filename for name in CELLS_FILES)
