"""Verdicts as they come from another process: believed only if every field is what it should be."""

import base64
import binascii
from typing import Any, get_args

from twophase.core.errors import TwophaseError
from twophase_labs.machine.judge import MAX_PICTURE_BYTES, Verdict, VerdictName

MAX_CHARS, MAX_LINES = 20_000, 200
_PNG = b"\x89PNG\r\n\x1a\n"
_TEXTS = ("exercise", "verdict", "reason", "hint", "failed_property", "picture", "checked_in")
_LISTS = ("details", "held", "notes")


class BadVerdictError(TwophaseError):
    """What came is no verdict."""


def verdict_from(data: Any, exercise: str) -> Verdict:
    """The verdict on `exercise` in parsed JSON.

    Raises:
        BadVerdictError: a field is missing, too many, of another type, too long, or the picture is no PNG.
    """
    if not isinstance(data, dict) or data.keys() != {*_TEXTS, *_LISTS}:
        raise BadVerdictError("a verdict has other fields")
    for name in _TEXTS:
        _require_text(name, data[name], MAX_CHARS if name != "picture" else 2 * MAX_PICTURE_BYTES)
    for name in _LISTS:
        if not isinstance(data[name], list) or len(data[name]) > MAX_LINES:
            raise BadVerdictError(f"a verdict's {name} is a list of at most {MAX_LINES} lines")
        for line in data[name]:
            _require_text(name, line, MAX_CHARS)
    if data["exercise"] != exercise:
        raise BadVerdictError(f"a verdict on another exercise than {exercise}")
    if data["verdict"] not in get_args(VerdictName):
        raise BadVerdictError("an unknown verdict")
    if data["checked_in"] not in ("", "grader", "answer"):
        raise BadVerdictError("a check in an unknown place")
    _require_png(data["picture"])
    return Verdict.from_json(data)


def _require_text(name: str, value: Any, most: int) -> None:
    if not isinstance(value, str) or len(value) > most:
        raise BadVerdictError(f"a verdict's {name} is text of at most {most} characters")


def _require_png(picture: str) -> None:
    """A report card puts it between quotes, so nothing but base64 will do."""
    try:
        is_png = not picture or base64.b64decode(picture, validate=True).startswith(_PNG)
    except (binascii.Error, ValueError):
        is_png = False
    if not is_png:
        raise BadVerdictError("a verdict's picture is not a PNG in base64")


def shortened(verdict: Verdict) -> dict[str, Any]:
    """As JSON that `verdict_from` takes: what a learner's code said may be of any length."""

    def cut(value: Any, most: int = MAX_CHARS) -> Any:
        return value if len(value) <= most else value[: most - 4] + " ..."

    fields = verdict.to_json()
    for name in _TEXTS:
        if name != "picture":
            fields[name] = cut(fields[name])
    for name in _LISTS:
        fields[name] = [cut(line) for line in fields[name][:MAX_LINES]]
    return fields
