"""The body of a request: a JSON object of limited size."""

import json
from typing import Any, NoReturn

from starlette.requests import Request

from twophase.core.rules import shown
from twophase_server.errors import ApiError, invalid


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises:
        ApiError: 413, the body is too large; 415, its content type is not JSON, or it is compressed; 400, it is not a
            valid JSON object.
        ClientDisconnect: The client has disconnected.
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

    def require(size: int) -> None:
        if size > max_bytes:
            raise ApiError(413, f"the body must have at most {max_bytes} bytes, got {size} or more.", "body_too_large")

    require(int(request.headers.get("content-length", 0)))  # h11 accepts digits only
    body = bytearray()
    async for piece in request.stream():
        body += piece
        require(len(body))
    return bytes(body)


def from_json(text: bytes) -> Any:
    """Strict JSON (RFC 8259) in UTF-8. Raises ValueError for invalid JSON; says why, and where."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")
