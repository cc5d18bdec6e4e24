"""Streamed answers as server-sent events."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from twophase_server.body import to_json

DONE = "data: [DONE]\n\n"


def event(content: Any) -> str:
    return f"data: {to_json(content)}\n\n"


@final
class EventStream(StreamingResponse):
    """Sends events until the last one, or until the client disconnects; `at_end` is called in either case."""

    def __init__(self, events: AsyncGenerator[str, None], at_end: Callable[[], None]) -> None:
        super().__init__(
            events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        self._events, self._at_end = events, at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()
            await self._events.aclose()
