"""JSON, in and out."""

import json
from typing import Any, NoReturn

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(content: Any) -> str:
    return _ENCODER.encode(content)


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
