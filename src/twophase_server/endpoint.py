"""A POST endpoint: accepts a request, reads its fields, and answers while its client is connected."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twophase_server.body import read_object
from twophase_server.fields import Table
from twophase_server.service import Service, service_of
from twophase_server.tenants import Account


@dataclass(frozen=True, slots=True)
class Call:
    """An accepted request whose body has been read.

    Attributes:
        fields: The body's, by their table.
        at_end: Is closed after the last byte of the answer, or when the client has disconnected.
    """

    service: Service
    account: Account
    fields: Mapping[str, Any]
    at_end: contextlib.AsyncExitStack


@final
@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """An ASGI application that answers with the response of `handle`.

    Attributes:
        table: The body's fields.
        generates: Refuse the request before its body is read, if the engine accepts none now.
    """

    handle: Callable[[Call], Coroutine[Any, Any, Response]]
    table: Table
    generates: bool = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        service = service_of(request)
        async with contextlib.AsyncExitStack() as at_end:
            account = at_end.enter_context(service.accept(request))
            if self.generates:
                service.llm.check_acceptance()
            given = await read_object(request, service.settings.max_body_bytes)
            fields = self.table.read(given)
            service.require_model(fields.get("model"))
            response = await _while_connected(request, self.handle(Call(service, account, fields, at_end)))
            await response(scope, receive, send)


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The result of `work`, which is cancelled if the client disconnects. Raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    tasks = working, asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # their resources may be closed from now on


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected (its body has been read, so no other message can arrive)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
