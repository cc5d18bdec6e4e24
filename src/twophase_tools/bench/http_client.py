"""`twophase bench serve --url`: a server in the place of an engine, each request by a client of its own.

Completions of token ids are streamed, as OpenAI's protocol has them; any server of the protocol can be asked.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, NamedTuple, final, get_args

import httpx

from twophase.core.errors import ConfigError, TwophaseError
from twophase.core.plan import StepTrace
from twophase.core.request import CompletionOutput, FinishReason, RequestMetrics, RequestOutput, SamplingParams
from twophase_tools.bench.serve import ServeReport, serve
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import Workload

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0  # servers close an idle connection after some seconds: it should not be used just then
# The second is vLLM's and ours: a chunk of several tokens counts as several.
STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
NOTE = (
    "Measured at the client. Latencies count from when a request was due; 'in queue' is how late the client sent it, "
    "and what it waited in the server is in its TTFT."
)


class Progress(NamedTuple):
    """What has come of a request so far: 0 tokens say that it is accepted, and the last one has a finish reason."""

    num_tokens: int
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0


class ServerError(TwophaseError):
    """A server that cannot be asked at all."""


class RefusedError(TwophaseError):
    """A request was not served, or not to its end.

    Attributes:
        status: HTTP's; None: the connection could not be made, or broke before there was one. 200: it was accepted.
    """

    def __init__(self, status: int | None, why: str) -> None:
        super().__init__(f"{'no answer' if status is None else status}: {why}")
        self.status = status


@final
class HttpClient:
    """Asks one server. Use it as an async context manager; any number of requests may be under way.

    Args:
        url: Of the server, with or without /v1.
        api_key: Sent as a bearer token.
        timeout_s: Longest silence of the server within one request.
        keep_alive: Use a connection again for the next request.

    Raises:
        ConfigError: It is no URL of HTTP.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float | int = 600.0, keep_alive: bool = True
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ConfigError(f"--url must be a URL such as http://127.0.0.1:8000, got {url!r} ({error}).") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"--url must be a URL such as http://127.0.0.1:8000, got {url!r}.")
        self.url = str(parsed).rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(float(timeout_s), connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=None if keep_alive else 0,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            trust_env=False,  # a proxy would be measured, too
        )
        self._model: str | None = None

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """The name of the first model that is served, which requests then ask for.

        Raises:
            ServerError: Nobody answers, or not with a list of models.
        """
        if self._model is None:
            try:
                answer = await self._http.get("/v1/models")
            except httpx.HTTPError as error:
                raise ServerError(f"{self.url} cannot be reached: {_said(error)}.") from error
            try:
                self._model = str(answer.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise ServerError(
                    f"{self.url}/v1/models gives no list of models, but {answer.status_code}: {answer.text[:200]!r}"
                ) from error
        return self._model

    async def ask(self, token_ids: tuple[int, ...], num_tokens: int) -> AsyncGenerator[Progress, None]:
        """A greedy completion of exactly so many tokens. Raises RefusedError with the server's status and words."""
        body = {
            "model": await self.model(),
            "prompt": token_ids,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": STREAM_OPTIONS,
        }
        is_accepted = False
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise RefusedError(answer.status_code, _message(await answer.aread()))
                is_accepted = True
                yield Progress(0)
                async for progress in _progress(answer.aiter_lines()):
                    yield progress
        except httpx.HTTPError as error:
            raise RefusedError(200 if is_accepted else None, _said(error)) from error


async def _progress(lines: AsyncIterator[str]) -> AsyncIterator[Progress]:
    """What each server-sent event tells (a line with data; https://html.spec.whatwg.org, section 9.2). A chunk without
    usage counts as a token if it has text."""
    so_far = Progress(0)
    async for line in lines:
        if not line.startswith("data:"):
            continue
        event = line[5:].strip()
        if event == "[DONE]":
            break
        try:
            chunk = json.loads(event)
        except ValueError as error:
            raise RefusedError(200, f"the stream has a chunk that is not JSON: {event[:200]!r}") from error
        if not isinstance(chunk, dict) or "error" in chunk:
            raise RefusedError(200, f"the stream ended in an error: {_message(event.encode())}")
        so_far = _after(so_far, chunk)
        yield so_far
    if so_far.finish_reason is None:
        raise RefusedError(200, f"the stream ended after {so_far.num_tokens} tokens without a finish reason")


def _after(so_far: Progress, chunk: dict[str, Any]) -> Progress:
    choice, usage = (chunk.get("choices") or [{}])[0], chunk.get("usage") or {}
    details, reason = usage.get("prompt_tokens_details") or {}, choice.get("finish_reason")
    if reason is not None and reason not in get_args(FinishReason):
        reason = "stop"  # 'tool_calls' and the like: it ended by itself
    return Progress(
        num_tokens=usage.get("completion_tokens", so_far.num_tokens + bool(choice.get("text"))),
        finish_reason=reason or so_far.finish_reason,
        num_cached_tokens=details.get("cached_tokens") or so_far.num_cached_tokens,
    )


def _message(body: bytes) -> str:
    """The message of OpenAI's error body, or the body's beginning."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return repr(body[:200].decode("utf-8", "replace"))


def _said(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# -- in the place of an engine ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    """A request under way, and what has come of it so far."""

    request_id: str
    token_ids: tuple[int, ...]
    arrival_s: float | int
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    last: Progress = field(default_factory=lambda: Progress(0))
    error: str | None = None

    def output(self) -> RequestOutput:
        """As it stands; without an end of its own it is aborted."""
        reason: FinishReason = "error" if self.error is not None else self.last.finish_reason or "abort"
        times_s, first_s = tuple(self.times_s), self.times_s[0] if self.times_s else None
        began_s = None if first_s is None else self.sent_s
        counts = len(self.token_ids), self.last.num_cached_tokens, 0
        metrics = RequestMetrics(self.arrival_s, began_s, first_s, time.monotonic(), times_s, *counts)
        completion = CompletionOutput(0, "", (), finish_reason=reason, error=self.error)
        return RequestOutput(self.request_id, None, self.token_ids, (completion,), True, metrics)


class HttpEngine:
    """A server, as what `serve` needs of an engine. A thread of its own sends each request when it is added.

    Use it as a context manager.
    """

    trace: tuple[StepTrace, ...] = ()
    idle_s = math.inf  # nothing has to be done here until something comes: see `wait`

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._open: dict[str, tuple[_Asked, Future[RequestOutput]]] = {}
        self._has_ended = Event()

    def __enter__(self) -> "HttpEngine":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__()

    def model(self) -> str:
        """See `HttpClient.model`."""
        return asyncio.run_coroutine_threadsafe(self._client.model(), self._loop).result()

    def add_request(
        self,
        request_id: str,
        prompt: dict[str, tuple[int, ...]],
        params: SamplingParams,
        *,
        arrival_s: float | int,
        ttft_slo_s: float | int | None,
        stream: bool,
    ) -> None:
        asked = _Asked(request_id, prompt["prompt_token_ids"], arrival_s, max(arrival_s, time.monotonic()))
        future = asyncio.run_coroutine_threadsafe(self._ask(asked, params.max_tokens), self._loop)
        self._open[request_id] = asked, future
        future.add_done_callback(lambda _: self._has_ended.set())

    async def _ask(self, asked: _Asked, num_tokens: int) -> RequestOutput:
        try:
            async with aclosing(self._client.ask(asked.token_ids, num_tokens)) as answer:
                async for progress in answer:
                    asked.times_s += [time.monotonic()] * (progress.num_tokens - len(asked.times_s))
                    asked.last = progress
        except RefusedError as error:
            asked.error = str(error)
        return asked.output()

    def step(self) -> list[RequestOutput]:
        """Those that have ended since the last call."""
        self._has_ended.clear()
        ended = [request_id for request_id, (_, future) in self._open.items() if future.done()]
        return [self._open.pop(request_id)[1].result() for request_id in ended]

    def wait(self, seconds: float) -> None:
        """Until a request has ended, but no longer than that."""
        self._has_ended.wait(seconds)

    def abort(self, request_id: str) -> RequestOutput | None:
        asked, future = self._open.pop(request_id)
        future.cancel()
        return asked.output()

    def has_unfinished_requests(self) -> bool:
        return bool(self._open)


def bench_url(
    url: str, model: str, workload: Workload, *, api_key: str | None = None, slo: Slo | None = None, seed: int = 0,
    **how: Any,
) -> ServeReport:  # fmt: skip
    """Play the workload against a server. `how` is as of `serve`.

    Args:
        model: Whose vocabulary prompts are drawn from.

    Raises:
        ConfigError, ServerError: An option that cannot work, or a server that cannot be asked.
    """
    from twophase.model.config import load_config
    from twophase_features.model_store.prepare import resolve_model

    vocab_size = load_config(resolve_model(model)).vocab_size
    with HttpEngine(HttpClient(url, api_key)) as engine:
        about: dict[str, str | int] = {"url": url, "model": engine.model()}
        run = serve(engine, workload, vocab_size, seed=seed, slo=slo, sleep=engine.wait, **how)
    summary = ServingReport.of(run.records, run.steps, slo=slo, window=run.window)
    return ServeReport(workload.name, seed, about, summary, run, NOTE)
