"""Where the time before a first token goes: a stamp at each border, all on one clock, so that the terms add up.

network     from the client's send to the server, and from the server's write to the client's first text
preprocess  from the server's app to the engine's queue, the waits for its threads left out
queue       those waits, and from the queue to the first step
prefill     from the first step to the end of the forward that gives the first token's logits
sample      from there to the token
serialise   from the token to the bytes of its event
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twophase import LLM
from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput
from twophase_labs.operations.clients import Answer, Ask, Reader, ask_all
from twophase_server.background import BackgroundServer
from twophase_server.settings import ServerSettings

TERMS = ("network", "preprocess", "queue", "prefill", "sample", "serialise")


@dataclass
class Stamps:
    """When things happened to one request inside the server."""

    came_s: float
    submitted_s: float = 0.0
    preparing_s: float = 0.0  # for how long: its text became tokens, and it was added to the engine
    written_s: float = 0.0
    output: RequestOutput | None = None


@dataclass(frozen=True)
class Timed:
    """A client's answer and its six terms, in seconds."""

    answer: Answer
    output: RequestOutput
    terms: dict[str, float]

    @property
    def ttft_s(self) -> float:
        assert self.answer.first_s is not None
        return self.answer.first_s - self.answer.last_sent_s

    @property
    def line(self) -> str:
        """The terms, their sum, and what the client saw, in milliseconds."""
        seconds = (*(self.terms[term] for term in TERMS), sum(self.terms.values()), self.ttft_s)
        return f"{self.answer.ask.name:20}" + "".join(f"{1e3 * value:11,.1f}" for value in seconds)


HEADER = f"{'ms':20}" + "".join(f"{term:>11}" for term in (*TERMS, "sum", "client"))

_CURRENT: ContextVar[Stamps] = ContextVar("stamps")


@dataclass
class StampedServer:
    """A server that notes when things happen to its requests."""

    server: BackgroundServer
    by_client: dict[str, Stamps] = field(default_factory=dict)
    by_request: dict[str, Stamps] = field(default_factory=dict)
    forwards_s: list[float] = field(default_factory=list)  # when each forward was done

    @property
    def url(self) -> str:
        return self.server.url

    def ask(self, asks: Sequence[Ask], make_reader: Callable[[], Reader] | None = None) -> list[Timed]:
        """Send these, and take the time of each apart."""
        return [self._timed(answer) for answer in ask_all(self.url, asks, make_reader)]

    def _timed(self, answer: Answer) -> Timed:
        at = self.by_client[f"{answer.ask.name}-{answer.last_sent_s}"]
        if answer.first_s is None or at.output is None:
            raise ValueError(f"{answer.ask.name!r} got no text: status {answer.status}, {answer.error}")
        times = at.output.metrics
        assert times.first_scheduled_s is not None
        assert times.first_token_s is not None
        forward_s = self.forwards_s[bisect_right(self.forwards_s, times.first_token_s) - 1]
        terms = {
            "network": (at.came_s - answer.last_sent_s) + (answer.first_s - at.written_s),
            "preprocess": (at.submitted_s - at.came_s) + at.preparing_s,
            "queue": (times.first_scheduled_s - at.submitted_s) - at.preparing_s,
            "prefill": forward_s - times.first_scheduled_s,
            "sample": times.first_token_s - forward_s,
            "serialise": at.written_s - times.first_token_s,
        }
        return Timed(answer, at.output, terms)

    # -- an observer of the engine

    def note_step(self, step: StepTrace) -> None:
        pass

    def note_end(self, output: RequestOutput) -> None:
        if output.request_id in self.by_request:
            self.by_request[output.request_id].output = output


class _AtTheDoor:
    """Around the app: notes when a request came, and when its first text was handed over to be sent."""

    def __init__(self, app: ASGIApp, by_client: dict[str, Stamps]) -> None:
        self._app, self._by_client = app, by_client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = dict(scope.get("headers", ())).get(b"x-request-id", b"").decode()
        stamps = Stamps(time.monotonic())
        _CURRENT.set(stamps)
        self._by_client[name] = stamps

        async def stamped_send(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body") and not stamps.written_s:
                stamps.written_s = time.monotonic()
            await send(message)

        await self._app(scope, receive, stamped_send)


@contextmanager
def stamped(llm: LLM, settings: ServerSettings | None = None) -> Iterator[StampedServer]:
    """A server with stamps at every border; the LLM is as before afterwards."""
    engine: Any = llm.engine
    runner = engine._runner
    with BackgroundServer(llm, settings) as server:
        noted = StampedServer(server)
        thread: Any = server.llm
        submit, prepare, add, run = thread.submit, engine.prepare, engine.add, runner.run

        async def stamped_submit(*args: Any, **options: Any) -> Any:
            stamps = _CURRENT.get()
            stamps.submitted_s = time.monotonic()
            noted.by_request[options["request_id"]] = stamps
            return await submit(*args, **options)

        def stamped_prepare(request_id: str, *args: Any, **options: Any) -> Any:
            start_s = time.monotonic()
            prepared = prepare(request_id, *args, **options)
            noted.by_request[request_id].preparing_s += time.monotonic() - start_s
            return prepared

        def stamped_add(prepared: Any) -> None:
            start_s = time.monotonic()
            add(prepared)
            noted.by_request[prepared.request.request_id].preparing_s += time.monotonic() - start_s

        def stamped_run(*args: Any) -> Any:
            logits = run(*args)
            noted.forwards_s.append(time.monotonic())
            return logits

        server.app.add_middleware(_AtTheDoor, by_client=noted.by_client)  # before its first request
        thread.observe(noted)
        thread.submit, runner.run = stamped_submit, stamped_run
        engine.prepare, engine.add = stamped_prepare, stamped_add
        try:
            yield noted
        finally:
            server.stop()
            del thread.submit, engine.prepare, engine.add, runner.run
