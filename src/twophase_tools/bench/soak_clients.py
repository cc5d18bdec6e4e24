"""The clients of a soak: most behave, some vanish, read slowly, send garbage or ask for too much."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, final

import httpx

from twophase_tools.bench.clients import RefusedError
from twophase_tools.bench.http_client import HttpClient
from twophase_tools.load.workloads import TimedRequest

REQUEST_LIMIT_S = 120.0  # a request that takes longer is stuck
BUSY = (429, 503)
AWAY_S = 1.0  # more between two requests while the server is being restarted
BREACHES_KEPT = 20


@dataclass(slots=True)
class Tally:
    """What became of all requests so far.

    Attributes:
        outcomes: How often, by (kind of client, what became of its request).
        breaches: What no server may do, the first ones in words.
        num_breaches, num_stuck: Of those: all, and requests that took longer than the limit.
        num_lost: Accepted requests that were not answered to their end.
        open_accepted: Requests that were accepted and have not ended.
        may_be_away: The server is being restarted: a connection that is refused is nobody's fault.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)
    num_breaches: int = 0
    num_stuck: int = 0
    num_lost: int = 0
    open_accepted: int = 0
    may_be_away: bool = False

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())

    def breach(self, kind: str, words: str) -> str:
        self.num_breaches += 1
        if len(self.breaches) < BREACHES_KEPT:
            self.breaches.append(f"{kind}: {words}")
        return f"BROKEN: {words}"


@final
class Crowd:
    """Clients of one server. Each sends one request after the other, of a kind that is drawn anew, until it is told to
    stop; what it has begun it ends.

    Args:
        context: Tokens that a prompt and its completion may have together.
        think_s: Longest pause between two requests of a client.
    """

    def __init__(self, url: str, context: int, vocab_size: int, think_s: float, seed: int) -> None:
        self.tally = Tally()
        self._url, self._context, self._vocab_size, self._think_s = url, context, vocab_size, think_s
        self._random = random.Random(seed)
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "well-formed": (60, self._behave),
            "slow reader": (8, self._read_slowly),
            "vanishing": (12, self._vanish),
            "garbage": (10, self._send_garbage),
            "too much": (10, self._ask_for_too_much),
        }

    async def __aenter__(self) -> "Crowd":
        # No connection is used twice: a server may close an idle one just when the next request is on its way.
        self._client = HttpClient(self._url, timeout_s=REQUEST_LIMIT_S, keep_alive=False)
        self._http = httpx.AsyncClient(
            base_url=self._url,
            timeout=REQUEST_LIMIT_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )
        await self._client.model()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(None, None, None)
        await self._http.aclose()

    async def besiege(self, num_clients: int, stop: asyncio.Event) -> None:
        """All clients at once until `stop` is set and each has ended what it had begun."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(num_clients):
                clients.create_task(self._one_client(stop))

    async def _one_client(self, stop: asyncio.Event) -> None:
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, self._think_s) + AWAY_S * self.tally.may_be_away)
            (kind,) = self._random.choices(names, weights)
            try:
                what = await asyncio.wait_for(self._kinds[kind][1](), REQUEST_LIMIT_S)
            except (TimeoutError, httpx.ReadTimeout):
                self.tally.num_stuck += 1
                what = self.tally.breach(kind, f"stuck for {REQUEST_LIMIT_S:g} s")
            self.tally.outcomes[(kind, what)] += 1

    # -- those that are to be answered

    async def _behave(self) -> str:
        return await self._read(*self._request(most_tokens=64), pause_s=0.0)

    async def _read_slowly(self) -> str:
        return await self._read(*self._request(most_tokens=16), pause_s=0.1)

    def _request(self, most_tokens: int) -> tuple[TimedRequest, tuple[int, ...]]:
        num_prompt_tokens = self._random.randint(1, min(64, self._context // 2))
        num_output_tokens = self._random.randint(1, min(most_tokens, self._context // 2))
        token_ids = tuple(self._random.choices(range(self._vocab_size), k=num_prompt_tokens))
        return TimedRequest("soak", 0.0, num_prompt_tokens, num_output_tokens), token_ids

    async def _read(self, request: TimedRequest, token_ids: tuple[int, ...], pause_s: float) -> str:
        """Read an answer to its end. It has all its tokens, or the refusal says why."""
        kind = "slow reader" if pause_s else "well-formed"
        is_accepted, num_tokens = False, 0
        try:
            async with aclosing(self._client.ask(request, token_ids)) as answer:
                async for progress in answer:
                    if not is_accepted:
                        is_accepted = True
                        self.tally.open_accepted += 1
                    num_tokens = progress.num_tokens
                    await asyncio.sleep(pause_s)
            if num_tokens != request.num_output_tokens:
                return self.tally.breach(kind, f"{num_tokens} of {request.num_output_tokens} tokens came")
            return "answered"
        except RefusedError as error:
            if error.status in BUSY and not is_accepted:
                return f"refused with {error.status}"
            if error.status is None and self.tally.may_be_away:
                return "found nobody while the server was restarted"
            self.tally.num_lost += is_accepted
            return self.tally.breach(kind, str(error))
        finally:
            self.tally.open_accepted -= is_accepted

    # -- those that go away

    async def _vanish(self) -> str:
        """Close the connection after a few chunks, or before the first."""
        request, token_ids = self._request(most_tokens=64)
        num_chunks = self._random.randint(0, 5)
        try:
            async with aclosing(self._client.ask(request, token_ids)) as answer:
                async for progress in answer:
                    if progress.num_tokens >= num_chunks:
                        break
            return "gone before its end"
        except RefusedError as error:
            if error.status in BUSY:
                return f"refused with {error.status}"
            if error.status is None and self.tally.may_be_away:
                return "found nobody while the server was restarted"
            return self.tally.breach("vanishing", str(error))

    # -- those that are to be refused

    async def _send_garbage(self) -> str:
        right = {"prompt": "x", "max_tokens": 1}
        method, path, body = self._random.choice(
            [
                ("POST", "/v1/completions", b"{oops"),
                ("POST", "/v1/completions", b"\xff\xfe\x00"),
                ("POST", "/v1/completions", b""),
                ("POST", "/v1/completions", b"[]"),
                ("POST", "/v1/completions", b"[" * 5000),
                ("POST", "/v1/completions", _json(right | {"prompt": {"a": 1}})),
                ("POST", "/v1/completions", _json(right | {"prompt": [-1]})),
                ("POST", "/v1/completions", _json(right | {"prompt": [self._vocab_size]})),
                ("POST", "/v1/completions", _json(right | {"temperature": "hot"})),
                ("POST", "/v1/completions", _json(right | {"model": "nobody"})),
                ("POST", "/v1/completions", _json({})),
                ("POST", "/v1/chat/completions", _json({"messages": "hello"})),
                ("GET", "/v1/completions", b""),
                ("POST", "/v1/nowhere", _json(right)),
            ]
        )
        if self._random.random() < 0.1:
            return await self._send_noise()
        return await self._expect_refusal("garbage", method, path, body)

    async def _send_noise(self) -> str:
        """Bytes that are no HTTP, or half of a request: any answer will do, and so will none."""
        noise = self._random.choice([b"\x00\xff\x16\x03\x01" * 9, b"GET /v1/models HTTP/1.1\r\n", b"\r\n\r\n", b""])
        host, port = httpx.URL(self._url).host, httpx.URL(self._url).port
        try:
            _, writer = await asyncio.open_connection(host, port)
            writer.write(noise)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except OSError:
            if not self.tally.may_be_away:
                return self.tally.breach("garbage", "no connection")
        return "noise sent"

    async def _ask_for_too_much(self) -> str:
        right: dict[str, Any] = {"prompt": "x", "max_tokens": 1}
        body = self._random.choice(
            [
                right | {"prompt": [1] * (self._context + 1)},
                right | {"prompt": "x" * 50 * self._context},
                right | {"prompt": ["x"] * 5000},
                right | {"n": 10_000},
                right | {"max_tokens": -1},
                right | {"logprobs": 10_000},
                right | {"prompt": "x" * 6_000_000},
            ]
        )
        return await self._expect_refusal("too much", "POST", "/v1/completions", _json(body))

    async def _expect_refusal(self, kind: str, method: str, path: str, body: bytes) -> str:
        try:
            answer = await self._http.request(method, path, content=body, headers={"content-type": "application/json"})
        except httpx.ReadTimeout:
            raise
        except httpx.HTTPError as error:
            if self.tally.may_be_away:
                return "found nobody while the server was restarted"
            if isinstance(error, httpx.WriteError):
                return "cut off while it was sending"  # fair: it had been told, and went on
            return self.tally.breach(kind, f"{method} {path}: {type(error).__name__}: {error}")
        if not 400 <= answer.status_code < 500 and answer.status_code not in BUSY:
            return self.tally.breach(kind, f"{method} {path} {body[:80]!r} got {answer.status_code}")
        if not _says_why(answer):
            return self.tally.breach(kind, f"{method} {path}: {answer.status_code} without a word of why")
        return f"refused with {answer.status_code}"


def _says_why(answer: httpx.Response) -> bool:
    """Whether the body is OpenAI's error with a message."""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return False
    return isinstance(message, str) and bool(message.strip())


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()
