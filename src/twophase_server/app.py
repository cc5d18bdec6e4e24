"""The routes, the answer to errors, and the endpoints that do not run the model."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
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
            Route("/v1/models/{name:path}", _models),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
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
