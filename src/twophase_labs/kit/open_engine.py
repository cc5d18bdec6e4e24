"""The engine's own source on the page. It is read from the package at that moment, so that it cannot drift."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_LINES = 30


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a package; a notebook shows them as highlighted Python, in the colours of its theme."""

    where: str
    code: str

    def __repr__(self) -> str:
        return f"{self.where}\n\n{self.code}"

    def _repr_markdown_(self) -> str:
        return f"*{self.where}*\n\n```python\n{self.code}\n```"


def show_source(
    function: Callable[..., Any], first: str | None = None, last: str | None = None, without: str = ""
) -> Excerpt:
    """The live source of a function, method, class or Triton kernel.

    Args:
        first: Part of the line to begin with; None: the function's first.
        last: Part of the line to end with, the next one from there on that has it; None: the function's last.
        without: Part of conditions: what runs only where they hold is left out.

    Raises:
        ValueError: no line has `first` or `last`, or the excerpt is longer than 30 lines: choose a part.
    """
    function = inspect.unwrap(getattr(function, "fn", function))
    lines, number = inspect.getsourcelines(function)
    begin = 0 if first is None else _find(lines, first, 0)
    end = len(lines) if last is None else _find(lines, last, begin) + 1
    shown = _leave_out(lines[begin:end], without) if without else lines[begin:end]
    if len(shown) > MAX_LINES:
        raise ValueError(
            f"{function.__qualname__}: {len(shown)} lines are too many to read in a cell ({MAX_LINES} at most); "
            f"choose a part by `first` and `last`"
        )
    where = f"{function.__qualname__}, {function.__module__.replace('.', '/')}.py, from line {number + begin}"
    where += f", without {without}" if without else ""
    return Excerpt(where, textwrap.dedent("".join(shown)).rstrip())


def _leave_out(lines: list[str], word: str) -> list[str]:
    """Without each `if` whose condition has the word; of its `else` what is inside stays, one level further out."""
    kept: list[str] = []
    inside, skips = -1, False  # the indent of the `if` that is left out, and whether this is its first branch
    for line in lines:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if inside >= 0 and text and indent <= inside and not (text == "else:" and indent == inside):
            inside = -1
        if inside >= 0 and text == "else:" and indent == inside:
            skips = False
        elif inside < 0 and text.startswith("if ") and word in text:
            inside, skips = indent, True
        elif inside < 0:
            kept.append(line)
        elif not skips:
            kept.append(line.removeprefix("    "))
    return kept


def _find(lines: list[str], text: str, start: int) -> int:
    for index in range(start, len(lines)):
        if text in lines[index]:
            return index
    raise ValueError(f"no line from line {start + 1} of the excerpt on has {text!r}")
