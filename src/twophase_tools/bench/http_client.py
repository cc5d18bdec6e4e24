"""`twophase bench serve --url`: the same load over HTTP, each request by a client of its own.

Completions of token ids are streamed, as OpenAI's protocol has them. What stands here knows no engine: any server of
the protocol can be asked.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple, final, get_args

import httpx

from twophase.core.errors import ConfigError, TwophaseError
from twophase.core.request import FinishReason
from twophase_tools.bench.machine import record_machine
from twophase_tools.bench.serve import PROGRESS_S, RunLog, ServeReport, ServingRun, check_limits, prompts_of
from twophase_tools.bench.turns import Say
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport
from twophase_tools.load.slo import Slo
from twophase_tools.load.workloads import TimedRequest, Workload

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


Ask = Callable[[TimedRequest, tuple[int, ...]], AsyncGenerator[Progress, None]]


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

    async def ask(self, request: TimedRequest, token_ids: tuple[int, ...]) -> AsyncGenerator[Progress, None]:
        """A greedy completion of exactly so many tokens. Raises RefusedError with the server's status and words."""
        body = {
            "model": await self.model(),
            "prompt": token_ids,
            "max_tokens": request.num_output_tokens,
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


# -- load -------------------------------------------------------------------------------------------------------------


async def play(
    ask: Ask,
    workload: Iterable[TimedRequest],
    vocab_size: int,
    *,
    seed: int = 0,
    duration_limit_s: float | int | None = None,
    concurrency: int | None = None,
    say: Say = lambda line: None,
    now_s: Callable[[], float] = time.monotonic,
) -> ServingRun:
    """Play a workload until the last request has ended, as `serve` does with an engine.

    Args:
        concurrency: Clients of a closed loop; None: an open loop, in which requests come by the clock.
        now_s: A clock that runs as fast as the event loop's.

    Raises:
        ConfigError: As `serve`.
    """
    check_limits(duration_limit_s, concurrency)
    coming = prompts_of(workload, vocab_size, seed)
    log = RunLog(len(coming), now_s, say)

    async def open_loop() -> None:
        async with asyncio.TaskGroup() as clients:
            for request, token_ids in coming:
                due_s = log.start_s + request.arrival_s
                await asyncio.sleep(max(0.0, due_s - now_s()))
                clients.create_task(_ask(ask, request, token_ids, due_s, log, now_s))

    async def client() -> None:
        while coming:
            await _ask(ask, *coming.popleft(), now_s(), log, now_s)

    async def closed_loop(num_clients: int) -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(num_clients):
                clients.create_task(client())

    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.tell()

    running = asyncio.create_task(open_loop() if concurrency is None else closed_loop(concurrency))
    telling = asyncio.create_task(tell())
    _, unfinished = await asyncio.wait({running}, timeout=duration_limit_s)
    running.cancel()
    telling.cancel()
    await asyncio.gather(running, telling, return_exceptions=True)
    if not unfinished:
        running.result()  # raises what was raised
    return log.result((), was_cut=bool(unfinished))


async def _ask(
    ask: Ask, request: TimedRequest, token_ids: tuple[int, ...], due_s: float, log: RunLog, now_s: Callable[[], float]
) -> None:
    """Send a request, and note what became of it."""
    log.begin(request.request_id)
    sent_s = max(due_s, now_s())
    times_s: list[float] = []
    refusal: str | None = None
    last = Progress(0, "abort")  # if this is cancelled before anything has come
    try:
        async with aclosing(ask(request, token_ids)) as answer:
            async for progress in answer:
                times_s += [now_s()] * (progress.num_tokens - len(times_s))
                last = progress if progress.finish_reason else progress._replace(finish_reason="abort")
    except RefusedError as error:
        refusal, last = str(error), last._replace(finish_reason="error")
    finally:
        record = RequestRecord(
            request_id=request.request_id,
            arrival_s=due_s,
            first_scheduled_s=sent_s if times_s else None,
            token_times_s=tuple(times_s),
            finished_s=now_s(),
            num_prompt_tokens=len(token_ids),
            num_cached_tokens=last.num_cached_tokens,
            finish_reason=last.finish_reason,
        )
        log.end(record, refusal)


def bench_url(
    url: str, model: str, workload: Workload, *, api_key: str | None = None, slo: Slo | None = None, seed: int = 0,
    **how: Any,
) -> ServeReport:  # fmt: skip
    """Play the workload against a server. `how` is as of `play`.

    Args:
        model: Whose vocabulary prompts are drawn from.

    Raises:
        ConfigError, ServerError: An option that cannot work, or a server that cannot be asked.
    """
    from twophase.model.config import load_config
    from twophase_features.model_store.prepare import resolve_model

    vocab_size = load_config(resolve_model(model)).vocab_size

    async def run() -> tuple[ServingRun, str]:
        async with HttpClient(url, api_key) as client:
            served = await client.model()
            return await play(client.ask, workload, vocab_size, seed=seed, **how), served

    found, served = asyncio.run(run())
    summary = ServingReport.of(found.records, found.steps, slo=slo, window=found.window)
    about: dict[str, str | int] = {"url": url, "model": served}
    return ServeReport(workload.name, seed, about, record_machine(), summary, found, NOTE)
