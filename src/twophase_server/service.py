"""The state shared by the endpoints, and the way of a request to its endpoint."""

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.errors import TwophaseError, prompt_too_long
from twophase.core.rules import Rule
from twophase.model.tokenizer import Tokenizer
from twophase_features.serving.async_llm import AsyncLLM
from twophase_features.serving.errors import QueueFullError
from twophase_server.errors import ApiError, as_api_error, invalid
from twophase_server.fields import Unsupported, read_fields, read_object
from twophase_server.in_flight import InFlight
from twophase_server.logprobs import TokenTexts
from twophase_server.messages import read_messages
from twophase_server.metrics import ServerMetrics
from twophase_server.settings import ServerSettings
from twophase_server.sse import EventStream
from twophase_server.tenants import Lease, Tenants, read_tenants

MOST_WAIT_S = 60  # the longest time that a client is told to wait


@final
class Service:
    """One server's engine, accounts and metrics.

    Attributes:
        model_name: The model's name for clients.
        started_s: Seconds since 1970, when it was made.

    Raises:
        ConfigError: The file of API keys cannot be used.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        self.model_name = settings.served_model_name or llm.model_name
        self.tenants = Tenants() if settings.api_keys is None else read_tenants(Path(settings.api_keys))
        self.metrics = ServerMetrics(llm, self.model_name)
        self.token_texts = TokenTexts(llm.tokenizer)
        self.in_flight = InFlight()
        self.started_s = int(time.time())
        llm.observe(self.tenants)
        if llm.tokenizer is not None:
            # Made in advance: otherwise the first text that needs one would delay all requests.
            _ = llm.tokenizer.special_text.tokenizer, llm.tokenizer.chat_template

    def enter(self, request: Request) -> Lease:
        """Accept a request.

        Raises:
            ApiError: 401, the request has no valid key; 429, the quota or the queue is full; 503, the engine is dead.
        """
        account = self.tenants.find(request.headers.get("authorization", ""))
        if not self.llm.is_alive:
            raise ApiError(503, self.why_dead(), "engine_dead")
        return account.enter()

    def why_dead(self) -> str:
        error = self.llm.error
        return "the engine was closed." if error is None else f"the engine died of {type(error).__name__}: {error}"

    def require_model(self, name: str | None) -> None:
        """Raises ApiError (404) for a model that is not served; a request without a model gets the served model."""
        if name is not None and name != self.model_name:
            raise ApiError(404, f"model must be {self.model_name!r}, got {name[:80]!r}.", "model_not_found", "model")

    def require_length(self, num_tokens: int) -> None:
        """Raises ApiError (400) for a prompt that is too long for this server, InvalidRequestError for the context."""
        if num_tokens >= self.max_model_len:
            raise prompt_too_long(f"{num_tokens} tokens", self.max_model_len)
        most = self.settings.max_prompt_tokens
        if most is not None and num_tokens > most:
            raise invalid(f"a prompt must have at most {most} tokens, got {num_tokens}.", code="prompt_too_long")

    def require_n(self, n: int) -> None:
        """Raises ApiError (400) for too many completions of a prompt."""
        if n > self.settings.max_n:
            raise invalid(f"n must be at most {self.settings.max_n}, got {n}.", "n")

    def require_tokenizer(self, otherwise: str) -> Tokenizer:
        """Raises ApiError (400) if there is no tokenizer."""
        if self.llm.tokenizer is None:
            raise invalid(f"there is no tokenizer here (skip_tokenizer_init), so {otherwise}.")
        return self.llm.tokenizer

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, computed in another thread, because a long text takes time.

        Raises:
            ApiError: 400, there is no tokenizer.
            InvalidRequestError: It does not fit the context.
        """
        encode = self.require_tokenizer("a prompt must be token ids").encode
        return await asyncio.to_thread(encode, text, add_special_tokens, max_model_len=self.max_model_len)

    async def render(self, fields: Mapping[str, Any]) -> list[int]:
        """Token ids of a request's conversation, computed in another thread.

        Raises:
            ApiError: 400, there is no tokenizer, or a message is invalid.
            InvalidRequestError: There is no chat template, it refuses these messages, or they do not fit the context.
        """
        tokenizer = self.require_tokenizer("there is no chat")

        def find() -> list[int]:
            return tokenizer.apply_chat_template(
                read_messages(fields["messages"]),
                fields.get("add_generation_prompt", True),
                special_tokens_in_content=fields.get("special_tokens_in_content", False),
                max_model_len=self.max_model_len,
            )

        return await asyncio.to_thread(find)

    @property
    def max_model_len(self) -> int:
        return self.llm.llm.scheduler.config.max_model_len

    def refusal(self, error: TwophaseError) -> ApiError:
        """The error as sent to the client; it is counted."""
        told = error if isinstance(error, ApiError) else as_api_error(error)
        if isinstance(error, QueueFullError):
            # A new request waits about as long as the oldest queued one has waited.
            wait_s = min(MOST_WAIT_S, max(1, math.ceil(self.llm.queue_age_s or 0.0)))
            told.headers["retry-after"] = str(wait_s)
        self.metrics.note_refusal(told.status, told.code)
        return told


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@dataclass(frozen=True, slots=True)
class Call:
    """An accepted request whose body has been read; `fields` are the body's, by their rules."""

    request: Request
    service: Service
    lease: Lease
    fields: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Response]]


def endpoint(
    rules: Mapping[str, Rule],
    unsupported: Mapping[str, Unsupported] | None = None,
    *,
    required: Sequence[str] = (),
    generates: bool = True,
) -> Callable[[Handler], Callable[[Request], Awaitable[Response]]]:
    """A POST endpoint of a function that answers a call: accepts the request, and reads its body first.

    Args:
        rules, unsupported, required: The body's fields.
        generates: Refuse the request before its body is read, if the engine accepts none now.
    """

    def decorate(handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        @functools.wraps(handle)
        async def respond(request: Request) -> Response:
            service, response = service_of(request), None
            lease = service.enter(request)
            try:
                if generates:
                    service.llm.check_acceptance()
                given = await read_object(request, service.settings.max_body_bytes)
                fields = read_fields(given, rules, unsupported, required=required)
                service.require_model(fields.get("model"))
                response = await handle(Call(request, service, lease, fields))
                return response
            finally:
                if not isinstance(response, EventStream):  # which ends it after its last event
                    lease.end()

        return respond

    return decorate
