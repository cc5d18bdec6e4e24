"""Counts requests in flight, so that a server can finish them before it stops."""

import asyncio
from collections.abc import Callable
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from twophase_server.errors import ApiError


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

    def enter(self) -> None:
        """Count a request. Raises ApiError (503) while draining."""
        if self.is_draining:
            raise draining()
        self.num_requests += 1
        self._is_empty.clear()

    def leave(self) -> None:
        self.num_requests -= 1
        if not self.num_requests:
            self._is_empty.set()

    async def wait_empty(self, timeout_s: float | int | None = None) -> bool:
        """Wait until no request is in flight; False after `timeout_s`."""
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


@final
class InFlightMiddleware:
    """Middleware that counts requests whose path begins with one of `prefixes`, and reports refusals to
    `note_refusal`."""

    def __init__(
        self,
        app: ASGIApp,
        in_flight: InFlight,
        prefixes: tuple[str, ...],
        note_refusal: Callable[[int, str | None], None],
    ) -> None:
        self._app, self._in_flight, self._prefixes, self._note_refusal = app, in_flight, prefixes, note_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        try:
            self._in_flight.enter()
        except ApiError as error:
            self._note_refusal(error.status, error.code)
            await error.to_response()(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight.leave()
