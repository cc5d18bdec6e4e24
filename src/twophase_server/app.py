"""The routes, answers to errors, and the endpoints that do not run the model: /health, /ready, /metrics, /v1/models."""

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twophase.core.errors import TwophaseError
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server.errors import ApiError
from twophase_server.metrics import CONTENT_TYPE
from twophase_server.openai_chat import chat_completions
from twophase_server.openai_completions import completions
from twophase_server.service import Service, service_of
from twophase_server.settings import ServerSettings
from twophase_server.tokens import detokenize, tokenize


def create_app(llm: AsyncLLM, settings: ServerSettings | None = None) -> Starlette:
    """The server as an ASGI application; `app.state.service` is shared by the endpoints. Raises ConfigError if the file
    of API keys cannot be used."""
    service = Service(llm, ServerSettings() if settings is None else settings)
    app = Starlette(
        routes=[
            Route("/health", _health),
            Route("/ready", _ready),
            Route("/metrics", _metrics),
            Route("/v1/models", _models),
            Route("/v1/models/{name:path}", _model),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        middleware=[Middleware(service.in_flight.middleware, service.metrics.note_refusal)],
        exception_handlers={TwophaseError: _refuse, HTTPException: _refuse_path, Exception: _fail},
    )
    app.state.service = service
    return app


# -- answers to errors


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, TwophaseError)
    return service_of(request).refusal(error).to_response()


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}."
    return await _refuse(request, ApiError(error.status_code, words, headers=error.headers))


async def _fail(request: Request, error: Exception) -> Response:
    """A bug: the traceback goes to the log and not to the client."""
    words = "the server failed on this request; its log has the reason."
    return await _refuse(request, ApiError(500, words, "internal"))


# -- endpoints that do not run the model


async def _health(request: Request) -> Response:
    """200 while the process runs; /ready says whether it can serve."""
    return JSONResponse({"status": "alive"})


async def _ready(request: Request) -> Response:
    """200 while requests are accepted, else 503 with the reason."""
    service = service_of(request)
    if not service.llm.is_alive:
        return JSONResponse({"status": "dead", "reason": service.why_dead()}, 503)
    if service.in_flight.is_draining or service.llm.is_draining:
        return JSONResponse({"status": "draining", "num_requests": service.in_flight.num_requests}, 503)
    return JSONResponse({"status": "ready"})


async def _metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.to_text(), media_type=CONTENT_TYPE)


async def _models(request: Request) -> Response:
    service = service_of(request)
    service.enter(request).end()
    return JSONResponse({"object": "list", "data": [_describe(service)]})


async def _model(request: Request) -> Response:
    service = service_of(request)
    service.enter(request).end()
    service.require_model(request.path_params["name"])
    return JSONResponse(_describe(service))


def _describe(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "twophase",
        "max_model_len": service.max_model_len,
    }
