"""Two kernels side by side: what the production one has more."""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

ADDED, REMOVED = "rgba(0,158,115,.22)", "rgba(213,94,0,.22)"


@dataclass(frozen=True)
class SourceDiff:
    """Shown by a notebook as two columns; a line only one kernel has is coloured."""

    title: str
    rows: tuple[tuple[str, str, bool], ...]

    def __repr__(self) -> str:
        return f"{self.title}: {sum(not same for *_, same in self.rows)} of {len(self.rows)} rows differ"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{_cell(left, REMOVED, same)}{_cell(right, ADDED, same)}</tr>" for left, right, same in self.rows
        )
        heads = "".join(f'<th style="text-align:left">{name}</th>' for name in ("yours", "production"))
        return (
            f"<details><summary><b>{escape(self.title)}</b> (open to read)</summary>"
            f'<div style="overflow-x:auto"><table style="border-collapse:collapse"><tr>{heads}</tr>{rows}</table></div>'
            "</details>"
        )


def _cell(text: str, colour: str, same: bool) -> str:
    style = "font-family:monospace;font-size:.82em;white-space:pre;text-align:left;vertical-align:top;padding:0 .8em"
    background = "transparent" if same or not text else colour
    return f'<td style="{style};background:{background}">{escape(text)}</td>'


def source_diff(own: Callable[..., Any], production: Callable[..., Any], title: str) -> SourceDiff:
    """The learner's kernel beside the production kernel, aligned where lines are the same but for indentation."""
    left, right = _source(own), _source(production)
    matcher = difflib.SequenceMatcher(None, [x.strip() for x in left], [x.strip() for x in right], autojunk=False)
    rows: list[tuple[str, str, bool]] = []
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        height = max(i1 - i0, j1 - j0)
        ours = left[i0:i1] + [""] * (height - (i1 - i0))
        theirs = right[j0:j1] + [""] * (height - (j1 - j0))
        rows += [(a, b, tag == "equal") for a, b in zip(ours, theirs, strict=True)]
    return SourceDiff(title, tuple(rows))


def _source(kernel: Callable[..., Any]) -> list[str]:
    return inspect.getsource(getattr(kernel, "fn", kernel)).rstrip().split("\n")
