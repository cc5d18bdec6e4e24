"""Clients of the server, over HTTP: many at once, streaming, patient when they are refused. Loopback only."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpx

from twophase.config import DEFAULT_MODEL

T = TypeVar("T")
TIMEOUT_S = 120
MOST_TRIES = 30


class Reader(Protocol):
    """What exercise 8.1 makes."""

    def feed(self, data: bytes) -> list[str]: ...


@dataclass(frozen=True)
class Ask:
    """One request for a completion.

    Attributes:
        at_s: When it is sent, in seconds after the first.
        key: The tenant's API key.
        fields: More of the request's body.
    """

    prompt: str
    max_tokens: int = 8
    name: str = ""
    at_s: float = 0.0
    key: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    tries: int = MOST_TRIES


@dataclass(frozen=True)
class Answer:
    """What a client saw, on the clock of `time.monotonic`, which the engine uses as well.

    Attributes:
        status: Of the last response.
        sent_s, last_sent_s: When it was sent, first and last.
        first_s: When the first text was read; None: there was none.
        waits_s: How long it was told to wait, each time that it was refused.
    """

    ask: Ask
    status: int
    text: str
    error: str
    sent_s: float
    last_sent_s: float
    first_s: float | None
    done_s: float
    waits_s: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """From the moment when the client asked first."""
        return None if self.first_s is None else self.first_s - self.sent_s


def ask_all(url: str, asks: Sequence[Ask], make_reader: Callable[[], Reader] | None = None) -> list[Answer]:
    """All answers, in the order of the asks. A refused client waits as long as it is told, and tries again."""
    return in_a_thread(_ask_all(url, asks, make_reader))


def in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run an event loop of its own: a notebook's thread has one already.

    Raises:
        BaseException: what `work` raised.
    """
    with ThreadPoolExecutor(1, "clients") as thread:
        return thread.submit(asyncio.run, work).result()


async def _ask_all(url: str, asks: Sequence[Ask], make_reader: Callable[[], Reader] | None) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False, limits=limits) as client:
        start_s = time.monotonic()
        return list(await asyncio.gather(*(_ask(client, ask, start_s, make_reader) for ask in asks)))


async def _ask(client: httpx.AsyncClient, ask: Ask, start_s: float, make_reader: Callable[[], Reader] | None) -> Answer:
    await asyncio.sleep(max(0.0, start_s + ask.at_s - time.monotonic()))
    sent_s = time.monotonic()
    waits_s: list[float] = []
    while True:
        answer = await _try_once(client, ask, sent_s, make_reader, tuple(waits_s))
        if answer.status != 429 or len(waits_s) + 1 >= ask.tries:
            return answer
        waits_s.append(float(answer.error))
        await asyncio.sleep(waits_s[-1])


async def _try_once(
    client: httpx.AsyncClient,
    ask: Ask,
    sent_s: float,
    make_reader: Callable[[], Reader] | None,
    waits_s: tuple[float, ...],
) -> Answer:
    body = {
        "model": DEFAULT_MODEL,
        "prompt": ask.prompt,
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        **ask.fields,
    }
    last_sent_s = time.monotonic()
    headers = {
        "x-request-id": f"{ask.name}-{last_sent_s}",
        **({"authorization": f"Bearer {ask.key}"} if ask.key else {}),
    }
    text, error, first_s = "", "", None
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        status = response.status_code
        if status == 429:
            error = response.headers["retry-after"]
        elif status != 200:
            error = (await response.aread()).decode()
        else:
            async for said in _events(response, make_reader):
                piece = {} if said == "[DONE]" else json.loads(said)
                error = piece.get("error", {}).get("code", error)
                new = "".join(choice["text"] for choice in piece.get("choices", ()))
                first_s = time.monotonic() if first_s is None and new else first_s
                text += new
    return Answer(ask, status, text, error, sent_s, last_sent_s, first_s, time.monotonic(), waits_s)


async def _events(response: httpx.Response, make_reader: Callable[[], Reader] | None) -> AsyncIterator[str]:
    if make_reader is None:
        async for line in response.aiter_lines():  # this server's events have one line of data each
            if line.startswith("data: "):
                yield line.removeprefix("data: ")
    else:
        reader = make_reader()
        async for data in response.aiter_raw():
            for said in reader.feed(data):
                yield said
