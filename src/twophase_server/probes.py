"""Endpoints that do not run the model: GET /health, /ready, /metrics, /v1/models."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from twophase_server.body import json_response
from twophase_server.metrics import CONTENT_TYPE
from twophase_server.service import Service, service_of


async def health(request: Request) -> Response:
    """200 while the process runs; /ready says whether it can serve."""
    return json_response({"status": "alive"})


async def ready(request: Request) -> Response:
    """200 while requests are accepted, else 503 with the reason."""
    service = service_of(request)
    if not service.llm.is_alive:
        return json_response({"status": "dead", "reason": service.why_dead()}, 503)
    if service.in_flight.is_draining or service.llm.is_draining:
        return json_response({"status": "draining", "num_requests": service.in_flight.num_requests}, 503)
    return json_response({"status": "ready"})


async def metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.to_text(), media_type=CONTENT_TYPE)


async def models(request: Request) -> Response:
    service = service_of(request)
    service.enter(request).end()
    return json_response({"object": "list", "data": [_describe(service)]})


async def model(request: Request) -> Response:
    service = service_of(request)
    service.enter(request).end()
    service.require_model(request.path_params["name"])
    return json_response(_describe(service))


def _describe(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "twophase",
        "max_model_len": service.max_model_len,
    }
