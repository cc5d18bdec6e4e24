"""The fields of a request's body, each read by its rule. No field is ignored: unknown fields are refused by name."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import Rule, checked, items_of, read_flag, read_int, read_text, shown
from twophase_server.body import from_json
from twophase_server.errors import ApiError, invalid

FLAG = Rule("true or false", read_flag)
OBJECT = Rule("a JSON object", holds=lambda value: isinstance(value, dict))
MAX_NAME = 512  # characters of a model's, a user's, a format's name
NAME = Rule(f"text of at most {MAX_NAME} characters", read_text, lambda name: len(name) <= MAX_NAME)


def read_ints(value: Any) -> list[int]:
    """A list of whole numbers, at the speed of C where they are Python's own."""
    items = list(items_of(value))
    return items if set(map(type, items)) <= {int} else [read_int(item) for item in items]


class Unsupported(NamedTuple):
    """A field of OpenAI's or vLLM's API that this server lacks. A `neutral` value is accepted: it changes nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises:
        ApiError: 413, the body is too large; 415, its content type is not JSON, or it is compressed; 400, it is not a
            valid JSON object.
    """
    # Web pages can send other types than JSON without asking.
    for name, only, default, hint in (
        ("content-type", "application/json", "", ""),
        ("content-encoding", "identity", "identity", ": send the JSON as it is, not compressed"),
    ):
        given = request.headers.get(name, default).partition(";")[0].strip().lower()
        if given != only:
            raise ApiError(415, f"{name} must be {only}{hint}, got {shown(given)}.", "unsupported_media_type")
    body = await _read_body(request, max_bytes)
    try:
        found = from_json(body)
    except ValueError as error:
        raise invalid(f"the body must be JSON: {error}.", code="invalid_json") from error
    if not isinstance(found, dict):
        raise invalid(f"the body must be a JSON object, got {shown(found)}.", code="invalid_json")
    return found


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body, holding at most the allowed number of bytes."""
    said = request.headers.get("content-length", "")
    size = int(said) if said.isascii() and said.isdigit() else 0
    body = bytearray()
    try:
        if size <= max_bytes:
            async for piece in request.stream():
                body += piece
                size = max(size, len(body))
                if size > max_bytes:
                    break
    except ClientDisconnect as error:
        raise ApiError(499, "the client has gone.") from error
    if size > max_bytes:
        raise ApiError(413, f"the body must have at most {max_bytes} bytes, got {size} or more.", "body_too_large")
    return bytes(body)


def read_fields(
    given: Mapping[str, Any],
    rules: Mapping[str, Rule],
    unsupported: Mapping[str, Unsupported] | None = None,
    within: str = "",
    required: Iterable[str] = (),
) -> dict[str, Any]:
    """The normalised values. A null field counts as left out.

    Args:
        within: Where the object is, for messages: 'stream_options.', say.
        required: Fields that may not be left out.

    Raises:
        ApiError: 400, with the field, its value and the rule that it breaks.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        path = within + name
        if name in rules:
            if value is not None:
                found[name] = read_field(path, value, rules[name])
        elif unsupported is not None and name in unsupported:
            why, neutral = unsupported[name]
            if value is not None and value not in neutral:
                raise invalid(f"{path} is not supported: {why}. Got {shown(value)}.", path, "unsupported_parameter")
        else:
            near = difflib.get_close_matches(name, rules, n=1) if len(name) <= MAX_NAME else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise invalid(f"unknown field {shown(path)}.{hint}", path, "unknown_parameter")
    for name in required:
        if name not in found:
            raise invalid(f"{within}{name} is missing.", within + name)
    return found


def read_field(path: str, value: Any, rule: Rule) -> Any:
    """Raises ApiError (400) if the value breaks the rule."""
    try:
        return checked(path, value, rule)
    except InvalidRequestError as error:
        raise invalid(str(error), path) from error
