"""The routes, and the answers to errors."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from twophase.core.errors import TwophaseError
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server.errors import ApiError
from twophase_server.in_flight import InFlight, InFlightMiddleware
from twophase_server.metrics import ServerMetrics
from twophase_server.openai_chat import chat_completions
from twophase_server.openai_completions import completions
from twophase_server.probes import health, metrics, model, models, ready
from twophase_server.service import Service, service_of
from twophase_server.settings import ServerSettings
from twophase_server.tenants import Tenants, read_tenants
from twophase_server.token_texts import TokenTexts
from twophase_server.tokens import detokenize, tokenize

COUNTED = ("/v1/", "/tokenize", "/detokenize")  # a stopping server waits for requests to these paths


def create_app(llm: AsyncLLM, settings: ServerSettings | None = None) -> Starlette:
    """The server as an ASGI application; `app.state.service` is shared by the endpoints.

    Raises:
        ConfigError: The file of API keys cannot be used.
    """
    settings = ServerSettings() if settings is None else settings
    name = settings.served_model_name or llm.model_name
    service = Service(
        llm=llm,
        settings=settings,
        model_name=name,
        tenants=Tenants() if settings.api_keys is None else read_tenants(Path(settings.api_keys)),
        metrics=ServerMetrics(llm, name),
        token_texts=TokenTexts(llm.tokenizer),
        in_flight=InFlight(),
    )
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        middleware=[Middleware(InFlightMiddleware, service.in_flight, COUNTED, service.metrics.note_refusal)],
        exception_handlers={
            ApiError: _refuse,
            TwophaseError: _refuse,
            HTTPException: _refuse_path,
            Exception: _fail,
        },
    )
    llm.observe(service.tenants)
    app.state.service = service
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError | TwophaseError)
    service = service_of(request)
    told = service.refusal(error)
    service.metrics.note_refusal(told.status, told.code)
    return told.to_response()


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}.", headers=error.headers)
    return await _refuse(request, told)


async def _fail(request: Request, error: Exception) -> Response:
    """A bug: the traceback goes to the log and not to the client."""
    return await _refuse(
        request, ApiError(500, "the server failed on this request; its log has the reason.", "internal")
    )
