"""A request between the event loop that asked for it and the thread that runs it."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.request_state import Prompt

# None once the engine has accepted the request, then its outputs; or an error, which is the last event.
Event = RequestOutput | Exception | None


@final
class RequestStream:
    """A request on its way to the engine, and its outputs: `async for output in stream`, in the event loop that asked.

    Outputs are cumulative, so a consumer slower than the engine gets the newest output and misses nothing. A consumer
    that stops early must `abort`.

    Args:
        request_id: Unique among the unfinished ones.
        options: Keyword arguments of `Engine.prepare`.
        limit_s: Seconds from now until its deadline; None: no deadline.

    Attributes:
        arrival_s, deadline_s: On the engine's clock.
        abort: Ends the request before the next step, if it is unfinished, without further events.
        is_accepted, is_scheduled: Whether the engine's statistics count it, and whether a step has computed a part of
            it. Set by the engine's thread, which sets nothing else here.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        options: Mapping[str, Any],
        limit_s: float | int | None,
    ) -> None:
        self.request_id, self.prompt, self.params, self.options = request_id, prompt, params, options
        self.arrival_s = time.monotonic()
        self.deadline_s = None if limit_s is None else self.arrival_s + limit_s
        self.loop = asyncio.get_running_loop()
        self.abort: Callable[[], None] = lambda: None  # set when the engine's thread takes the request
        self.is_accepted = self.is_scheduled = False
        self._newest: RequestOutput | None = None
        self._error: Exception | None = None
        self._is_over = False
        self._notice = asyncio.Event()  # set after an event

    async def accepted(self) -> None:
        """Wait until the engine has accepted the request; raises the error with which the engine refused it."""
        await self._until(lambda: self.is_accepted or self._error is not None)
        if not self.is_accepted and self._error is not None:
            raise self._error

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_over:
            raise StopAsyncIteration
        await self._until(lambda: self._newest is not None or self._error is not None)
        output, self._newest = self._newest, None
        self._is_over = output is None or output.finished
        if output is None:
            assert self._error is not None
            raise self._error
        return output

    async def _until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self._notice.clear()
            await self._notice.wait()

    def put(self, event: Event) -> None:
        """Called in the event loop that asked."""
        if isinstance(event, Exception):
            self._error = event
        elif event is not None:
            self._newest = event
        self._notice.set()


def deliver(events: Iterable[tuple[RequestStream, Event]]) -> None:
    """Pass events on to their event loops, with one call per loop: a call wakes the loop, and costs a step time."""
    of_loop: dict[asyncio.AbstractEventLoop, list[tuple[RequestStream, Event]]] = {}
    for stream, event in events:
        of_loop.setdefault(stream.loop, []).append((stream, event))
    for loop, its_events in of_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, its_events)
        except RuntimeError:  # the event loop has ended, and with it the waiting task
            for stream, _ in its_events:
                stream.abort()


def _put_all(events: Iterable[tuple[RequestStream, Event]]) -> None:
    for stream, event in events:
        stream.put(event)
