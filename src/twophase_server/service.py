"""The state shared by the endpoints."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from starlette.requests import Request

from twophase.core.errors import prompt_too_long
from twophase.model.tokenizer import Tokenizer
from twophase_features.serving.async_llm import AsyncLLM
from twophase_features.serving.errors import QueueFullError
from twophase_server.errors import ApiError, as_api_error, invalid
from twophase_server.logprobs import TokenTexts
from twophase_server.messages import Messages
from twophase_server.metrics import ServerMetrics
from twophase_server.settings import ServerSettings
from twophase_server.tenants import Account, Tenants, read_tenants

MOST_WAIT_S = 60  # the longest time that a client is told to wait


def draining() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down: it finishes accepted requests and accepts no new ones.",
        "draining",
        headers={"retry-after": "1"},
    )


@final
class Service:
    """One server's engine, accounts and metrics.

    Attributes:
        model_name: The model's name for clients.
        started_s: Seconds since 1970, when it was made.
        is_draining: Whether new requests are refused; requests in flight are still answered.
        num_in_flight: The requests between their acceptance and the last byte of their answer.
        is_idle: Set while no request is in flight.

    Raises:
        ConfigError: The file of API keys cannot be used.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        self.model_name = settings.served_model_name or llm.model_name
        self.tenants = Tenants() if settings.api_keys is None else read_tenants(Path(settings.api_keys))
        self.metrics = ServerMetrics(llm, self.model_name)
        self.token_texts = TokenTexts(llm.tokenizer)
        self.started_s = int(time.time())
        self.is_draining = False
        self.num_in_flight = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        llm.observe(self.tenants)
        if llm.tokenizer is not None:
            # Made in advance: otherwise the first text that needs one would delay all requests.
            _ = llm.tokenizer.special_text.tokenizer, llm.tokenizer.chat_template

    @contextlib.contextmanager
    def accept(self, request: Request) -> Iterator[Account]:
        """A request in flight, with its account.

        Raises:
            ApiError: 401, the request has no valid key; 429, the quota is used up; 503, the server is draining or the
                engine is dead.
        """
        if self.is_draining:
            raise draining()
        account = self.tenants.find(request.headers.get("authorization", ""))
        if not self.llm.is_alive:
            raise ApiError(503, self.why_dead(), "engine_dead")
        with account.running():
            self.num_in_flight += 1
            self.is_idle.clear()
            try:
                yield account
            finally:
                self.num_in_flight -= 1
                if not self.num_in_flight:
                    self.is_idle.set()

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

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ApiError (400) if there is no tokenizer."""
        if self.llm.tokenizer is None:
            raise invalid("there is no tokenizer here (skip_tokenizer_init): prompts and answers are token ids.")
        return self.llm.tokenizer

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, computed in another thread, because a long text takes time.

        Raises:
            ApiError: 400, there is no tokenizer.
            InvalidRequestError: It does not fit the context.
        """
        encode = self.tokenizer.encode
        return await asyncio.to_thread(encode, text, add_special_tokens, max_model_len=self.max_model_len)

    async def render(self, fields: Mapping[str, Any], messages: Callable[[], Messages]) -> list[int]:
        """Token ids of a request's conversation, read and computed in another thread.

        Raises:
            ApiError: 400, there is no tokenizer; or as `messages`.
            InvalidRequestError: There is no chat template, it refuses these messages, or they do not fit the context.
        """
        tokenizer = self.tokenizer
        return await asyncio.to_thread(
            lambda: tokenizer.apply_chat_template(
                messages(),
                fields.get("add_generation_prompt", True),
                special_tokens_in_content=fields.get("special_tokens_in_content", False),
                max_model_len=self.max_model_len,
            )
        )

    @property
    def max_model_len(self) -> int:
        return self.llm.llm.scheduler.config.max_model_len

    def refusal(self, error: Exception) -> ApiError:
        """The error as sent to the client; it is counted."""
        told = as_api_error(error)
        if isinstance(error, QueueFullError):
            # A new request waits about as long as the oldest queued one has waited.
            wait_s = min(MOST_WAIT_S, max(1, math.ceil(self.llm.queue_age_s or 0.0)))
            told.headers["retry-after"] = str(wait_s)
        self.metrics.note_refusal(told.status, told.code)
        return told


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
