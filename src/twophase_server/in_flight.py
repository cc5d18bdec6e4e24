"""Counts requests in flight, so that a server can finish them before it stops."""

import asyncio
from collections.abc import Callable
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from twophase_server.errors import ApiError

COUNTED = ("/v1/", "/tokenize", "/detokenize")  # a stopping server waits for requests to these paths


def draining() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down: it finishes accepted requests and accepts no new ones.",
        "draining",
        headers={"retry-after": "1"},
    )


@final
class InFlight:
    """The number of requests between their first byte and the last byte of their answer.

    Attributes:
        is_draining: Whether new requests are refused; requests in flight are still answered.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.num_requests = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def wait_empty(self, timeout_s: float | int | None = None) -> bool:
        """Wait until no request is in flight; False after `timeout_s`."""
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def middleware(self, app: ASGIApp, note_refusal: Callable[[int, str | None], None]) -> ASGIApp:
        """Counts the requests to `app`, and refuses them while draining; reports refusals to `note_refusal`."""

        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope["path"].startswith(COUNTED):
                await app(scope, receive, send)
            elif self.is_draining:
                error = draining()
                note_refusal(error.status, error.code)
                await error.to_response()(scope, receive, send)
            else:
                self.num_requests += 1
                self._is_empty.clear()
                try:
                    await app(scope, receive, send)
                finally:
                    self.num_requests -= 1
                    if not self.num_requests:
                        self._is_empty.set()

        return count
