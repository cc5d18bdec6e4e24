"""Verdicts to look at: a small HTML card in a notebook, the same as plain text elsewhere."""

import base64
import binascii
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.judge import Verdict

GREEN, RED, AMBER, GREY, BLUE = "#2e7d32", "#c62828", "#b26a00", "#757575", "#1565c0"
LOOKS = {
    "passed": ("✓", "passed", GREEN),
    "failed": ("✗", "not yet", RED),
    "error": ("✗", "error", RED),
    "timeout": ("✗", "out of time", RED),
    "missing": ("?", "missing", AMBER),
    "not_attempted": ("○", "not attempted", GREY),
    "by_reference": ("↷", "by reference", BLUE),
    "not_run_here": ("–", "not run here", GREY),
}


@dataclass(frozen=True)
class Card:
    """A heading, lines, code and a picture (a PNG in base64).

    `lines` are (label, text); a label of '' continues the one before.
    """

    mark: str
    heading: str
    colour: str
    lines: tuple[tuple[str, str], ...] = ()
    code: str = ""
    picture: str = ""

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.lines), default=0)
        rows = [f"  {label:<{width}}  {text}".rstrip() for label, text in self.lines]
        rows += [f"    {line}" for line in self.code.split("\n")] if self.code else []
        return "\n".join([f"{self.mark} {self.heading}", *rows])

    def _repr_html_(self) -> str:
        # Text takes the page's own colour, so that the card reads in a light and in a dark theme.
        rows = "".join(
            f'<div style="display:flex;gap:.8em;margin-top:.25em"><span style="flex:0 0 6.5em;opacity:.65">'
            f'{escape(label)}</span><span style="white-space:pre-wrap">{with_code(text)}</span></div>'
            for label, text in self.lines
        )
        code = f'<pre style="margin:.6em 0 0;white-space:pre-wrap">{escape(self.code)}</pre>' if self.code else ""
        return (
            f'<div style="border-left:4px solid {self.colour};padding:.45em .9em;margin:.3em 0;max-width:60em;'
            f'background:rgba(127,127,127,.08)"><div><b style="color:{self.colour}">{escape(self.mark)}</b> '
            f"<b>{escape(self.heading)}</b></div>{rows}{code}{picture_html(self.picture)}</div>"
        )


CODE = re.compile(r"\s*(?:@|(?:def|class|for|while|if|with|return|import|from|try)\b)")
PNG = b"\x89PNG\r\n\x1a\n"


def picture_html(picture: str) -> str:
    """'' of what is no PNG: an answer may have had a hand in it, and in a page it could be markup."""
    try:
        is_png = base64.b64decode(picture, validate=True).startswith(PNG)
    except (binascii.Error, ValueError):
        is_png = False
    if not is_png:
        return ""
    return f'<img alt="what went wrong" style="max-width:100%;margin-top:.6em" src="data:image/png;base64,{picture}">'


def with_code(text: str) -> str:
    """Backquoted parts in the font of code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 and i < len(parts) - 1 else p for i, p in enumerate(parts))


def with_skeleton(hint: str) -> tuple[str, str]:
    """A hint of several lines as its words and its code, which is shown as it stands."""
    if "\n" not in hint.strip():
        return hint, ""
    first, _, rest = hint.strip("\n").partition("\n")
    has_words = first.rstrip().endswith((":", ".")) and not CODE.match(first)
    words, code = (first.strip(), rest) if has_words else ("a skeleton:", hint)
    return words, textwrap.dedent(code).strip("\n")


def verdict_card(exercise: Exercise, verdict: Verdict, attempts: int, notes: Sequence[str] = ()) -> Card:
    mark, word, colour = LOOKS[verdict.verdict]
    is_open = verdict.verdict in ("failed", "error", "timeout")
    ending = f", {exercise.worth}" if verdict.passed else f" ({exercise.worth} to win)" * is_open
    lines: list[tuple[str, str]] = []
    if verdict.held:
        lines.append(("holds", "; ".join(verdict.held)))
    if verdict.failed_property and is_open:
        lines.append(("fails", verdict.failed_property))
    if not verdict.passed:
        lines.append(("why", verdict.reason))
    lines += [("", detail) for detail in verdict.details]
    if verdict.hint:
        lines.append(("hint", verdict.hint))
    elif is_open and exercise.hints and attempts > 1:
        lines.append(("stuck?", f'`hint("{exercise.id}")`'))
    lines += [("note", note) for note in (*verdict.notes, *notes)]
    return Card(mark, f"{exercise.id} {exercise.title}: {word}{ending}", colour, tuple(lines), picture=verdict.picture)


def note_card(heading: str, lines: Sequence[tuple[str, str]] = (), code: str = "") -> Card:
    return Card("•", heading, BLUE, tuple(lines), code)
