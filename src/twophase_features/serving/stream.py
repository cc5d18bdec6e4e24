"""A request between the event loop that asked for it and the thread that runs it."""

import asyncio
import time
from collections import deque
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
        is_accepted: The engine has accepted the request, and its statistics count it.
        is_scheduled: A step has computed a part of it.
        notice: Set after an event.
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
        self.abort: Callable[[], None] = lambda: None  # set by the thread that runs the request
        self.is_accepted = self.is_scheduled = False
        self._newest: deque[RequestOutput] = deque(maxlen=1)  # taking and replacing it are atomic
        self._error: Exception | None = None
        self._is_over = False
        self.notice = asyncio.Event()

    def put(self, event: Event) -> None:
        """Called by the engine's thread, which then has `notice` set in the event loop."""
        if event is None:
            self.is_accepted = True
        elif isinstance(event, Exception):
            self._error = event
        else:
            self._newest.append(event)

    async def accepted(self) -> None:
        """Wait until the engine has accepted the request; raises the error with which the engine refused it."""
        await self._until(lambda: self.is_accepted or self._error is not None)
        if not self.is_accepted and self._error is not None:
            self._is_over = True
            raise self._error

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_over:
            raise StopAsyncIteration
        await self._until(lambda: bool(self._newest) or self._error is not None)
        if self._newest:
            output = self._newest.popleft()
            self._is_over = output.finished
            return output
        assert self._error is not None
        self._is_over = True
        raise self._error

    async def _until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self.notice.clear()
            await self.notice.wait()


def deliver(events: Iterable[tuple[RequestStream, Event]]) -> None:
    """Pass events on to their event loops, with one call per loop."""
    of_loop: dict[asyncio.AbstractEventLoop, list[RequestStream]] = {}
    for stream, event in events:
        stream.put(event)
        of_loop.setdefault(stream.loop, []).append(stream)
    for loop, streams in of_loop.items():
        try:
            loop.call_soon_threadsafe(_notice_all, streams)
        except RuntimeError:  # the event loop has ended, and with it the waiting task
            for stream in streams:
                stream.abort()


def _notice_all(streams: Iterable[RequestStream]) -> None:
    for stream in streams:
        stream.notice.set()
