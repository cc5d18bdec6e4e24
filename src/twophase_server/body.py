"""JSON, in and out."""

import gc
import json
from typing import Any, NoReturn

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(content: Any) -> str:
    return _ENCODER.encode(content)


def to_json_in_turns(content: Any) -> str:
    """The same, encoded in pure Python, which lets other threads run meanwhile: for large values."""
    return "".join(_ENCODER.iterencode(content))


def from_json(text: bytes) -> Any:
    """Strict JSON (RFC 8259) in UTF-8.

    The garbage collector is off meanwhile: with many small lists it takes longer than the parser, and blocks all
    threads.

    Raises:
        ValueError: Invalid JSON; says why, and where.
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
