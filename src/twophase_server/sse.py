"""Streamed answers as server-sent events."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

DONE = "data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def event(content: Mapping[str, Any]) -> str:
    """One event; a `type` in the content is also the event's."""
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {_ENCODER.encode(content)}\n\n"


def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Sends events until the last one, or until the client disconnects."""
    return StreamingResponse(events, headers=_HEADERS, media_type="text/event-stream")
