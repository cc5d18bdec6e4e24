"""The routes, the answer to errors, and the endpoints that do not run the model."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twophase import __version__
from twophase.core.errors import TwophaseError
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server.errors import ApiError
from twophase_server.metrics import CONTENT_TYPE
from twophase_server.openai_chat import chat_completions
from twophase_server.openai_completions import completions
from twophase_server.openai_responses import responses
from twophase_server.openapi import document
from twophase_server.service import Service, service_of
from twophase_server.settings import ServerSettings
from twophase_server.tokens import detokenize, tokenize

ENDPOINTS = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
# Paths of OpenAI's API that this server lacks: clients get the reason.
REFUSED = {
    "/v1/embeddings": "the served model generates text and has no embeddings",
    "/v1/moderations": "the served model generates text and judges none",
    "/v1/responses/{name:path}": "nothing is stored, so there is no response to read, compact or delete",
}
_CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["authorization", "content-type", "x-request-id"],
    "expose_headers": ["x-request-id", "retry-after"],
}


def create_app(llm: AsyncLLM, settings: ServerSettings | None = None) -> Starlette:
    """The server as an ASGI application; `app.state.service` is shared by the endpoints. Raises ConfigError if the file
    of API keys cannot be used."""
    service = Service(llm, ServerSettings() if settings is None else settings)
    origins = service.settings.allowed_origins
    app = Starlette(
        routes=[
            *(Route(path, page) for path, page in PAGES.items()),
            Route("/v1/models/{name:path}", _models),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in ENDPOINTS.items()),
            *(Route(path, _unsupported, methods=["GET", "POST", "DELETE"]) for path in REFUSED),
        ],
        middleware=[Middleware(CORSMiddleware, allow_origins=origins, **_CORS)] if origins else [],
        exception_handlers=dict.fromkeys((TwophaseError, ClientDisconnect, HTTPException, Exception), _refuse),
    )
    app.state.service = service
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):  # of the routes
        words = f"{request.method} {request.url.path}: {error.detail}."
        error = ApiError(error.status_code, words, headers=error.headers)
    return service_of(request).refusal(error).to_response()


# -- endpoints that do not run the model


async def _health(request: Request) -> Response:
    """200 while the process runs; /ready says whether it can serve."""
    return JSONResponse({"status": "alive"})


async def _ready(request: Request) -> Response:
    """200 while requests are accepted, else 503 with the reason."""
    service = service_of(request)
    if not service.llm.is_alive:
        return JSONResponse({"status": "dead", "reason": service.why_dead()}, 503)
    if service.is_draining or service.llm.is_draining:
        return JSONResponse({"status": "draining", "num_requests": service.num_in_flight}, 503)
    return JSONResponse({"status": "ready"})


async def _version(request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def _openapi(request: Request) -> Response:
    pages = dict.fromkeys(PAGES, "application/json") | {"/metrics": "text/plain"}
    return JSONResponse(document(ENDPOINTS, pages, __version__, service_of(request).model_name))


async def _unsupported(request: Request) -> Response:
    service = service_of(request)
    with service.accept(request):
        reason = next(why for path, why in REFUSED.items() if request.url.path.startswith(path.partition("{")[0]))
        raise ApiError(404, f"{request.url.path} is not supported: {reason}.", "unsupported_endpoint")


async def _metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.to_text(), media_type=CONTENT_TYPE)


async def _models(request: Request) -> Response:
    """The served model, in a list if the path names no model."""
    service, name = service_of(request), request.path_params.get("name")
    with service.accept(request):
        service.require_model(name)
    model = {
        "id": service.model_name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "twophase",
        "max_model_len": service.max_model_len,
    }
    return JSONResponse({"object": "list", "data": [model]} if name is None else model)


PAGES: dict[str, Callable[[Request], Awaitable[Response]]] = {
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/openapi.json": _openapi,
    "/version": _version,
    "/v1/models": _models,
}
