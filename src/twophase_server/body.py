"""JSON, in and out."""

import gc
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.responses import Response

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(content), status, headers, media_type="application/json")


def to_json(content: Any) -> str:
    return _ENCODER.encode(content)


def to_json_in_turns(content: Any) -> str:
    """The same in Python's own code, which lets other threads run meanwhile: for what may be large."""
    return "".join(_ENCODER.iterencode(content))


def from_json(text: bytes) -> Any:
    """Strict JSON (RFC 8259) in UTF-8.

    The collector waits meanwhile: of many small lists it would take longer than the parser, and nobody else could run.

    Raises:
        ValueError: It is none; says why, and where.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    finally:
        if is_collecting:
            gc.enable()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")
