"""A client of OpenAI's protocol, as far as load needs it: completions of token ids, streamed."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, final, get_args

import httpx

from twophase.core.errors import ConfigError, TwophaseError
from twophase.core.request import FinishReason
from twophase_tools.bench.clients import Progress, RefusedError
from twophase_tools.load.workloads import TimedRequest

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0  # servers close an idle connection after some seconds: it should not be used just then
DONE = "[DONE]"
USAGE = {"include_usage": True}
USAGE_IN_CHUNKS = {"continuous_usage_stats": True}  # of vLLM: a chunk of several tokens counts as several


class ServerError(TwophaseError):
    """A server that cannot be asked at all."""


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
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(float(timeout_s), connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=None if keep_alive else 0,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            trust_env=False,  # a proxy would be measured, too
        )
        self._model: str | None = None
        self._has_usage_in_chunks = True  # until the server says that it knows of no such option

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
            if answer.status_code != 200:
                raise ServerError(f"{self.url}/v1/models answers {answer.status_code}: {_message(answer.content)}")
            try:
                self._model = str(answer.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise ServerError(f"{self.url}/v1/models gives no list of models: {answer.text[:200]!r}") from error
        return self._model

    async def ask(self, request: TimedRequest, token_ids: tuple[int, ...]) -> AsyncGenerator[Progress, None]:
        """A greedy completion of exactly so many tokens; see `twophase_tools.bench.clients.Ask`.

        Raises:
            RefusedError: With the server's status and words.
        """
        body = {
            "model": await self.model(),
            "prompt": token_ids,
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        if self._has_usage_in_chunks:
            try:
                async with aclosing(self._stream(body | {"stream_options": USAGE | USAGE_IN_CHUNKS})) as stream:
                    async for progress in stream:
                        yield progress
                return
            except RefusedError as error:
                if error.status not in (400, 422) or not all(name in str(error) for name in USAGE_IN_CHUNKS):
                    raise
                self._has_usage_in_chunks = False
        async with aclosing(self._stream(body | {"stream_options": USAGE})) as stream:
            async for progress in stream:
                yield progress

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[Progress, None]:
        is_accepted = False
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    why = _message(await answer.aread())
                    raise RefusedError(answer.status_code, why, _seconds(answer.headers.get("Retry-After")))
                is_accepted = True
                yield Progress(0)
                async for progress in _progress(_events(answer)):
                    yield progress
        except httpx.HTTPError as error:
            raise RefusedError(200 if is_accepted else None, _said(error)) from error


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """The data of server-sent events, each on a line of its own (https://html.spec.whatwg.org, section 9.2)."""
    rest = b""
    async for data in answer.aiter_raw():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


async def _progress(events: AsyncIterator[str]) -> AsyncIterator[Progress]:
    """What each chunk tells. One without usage counts as a token if it has text."""
    so_far = Progress(0)
    async for event in events:
        if event == DONE:
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
    choice = (chunk.get("choices") or [{}])[0]
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    usage = chunk.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    reason = choice.get("finish_reason")
    if reason is not None and reason not in get_args(FinishReason):
        reason = "stop"  # 'tool_calls' and the like: it ended by itself
    return Progress(
        num_tokens=usage.get("completion_tokens", so_far.num_tokens + bool(text)),
        finish_reason=reason or so_far.finish_reason,
        num_cached_tokens=details.get("cached_tokens") or so_far.num_cached_tokens,
    )


def _message(body: bytes) -> str:
    """The message of OpenAI's error body, or the body's beginning."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return repr(body[:200].decode("utf-8", "replace"))


def _seconds(retry_after: str | None) -> float | None:
    """Of a Retry-After header, which may also be a date: those are not waited for."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else None


def _said(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
