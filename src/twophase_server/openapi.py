"""The OpenAPI document, from the tables that read the requests."""

from collections.abc import Mapping
from typing import Any

from twophase_server.endpoint import Endpoint

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_REFUSED = {"description": "The error.", "content": {"application/json": {"schema": _ERROR}}}


def document(
    endpoints: Mapping[str, Endpoint], pages: Mapping[str, str], version: str, model_name: str
) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        endpoints: Path -> what answers a POST there.
        pages: Path -> the media type that a GET gets there.
        model_name: The only model that requests may name.
    """
    paths: dict[str, Any] = {path: {"get": _operation({media_type: {}})} for path, media_type in pages.items()}
    for path, endpoint in endpoints.items():
        answers: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
        if "stream" in endpoint.table.fields:
            answers["text/event-stream"] = {"schema": {"type": "string"}}
        schema = endpoint.table.schema
        named = [model_name] if "model" in endpoint.table.required else [model_name, None]
        schema = {**schema, "properties": {**schema["properties"], "model": {"enum": named}}}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"requestBody": body, **_operation(answers)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "twophase", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],  # a server may need no key
    }


def _operation(answers: Mapping[str, Any]) -> dict[str, Any]:
    found = {"description": "The answer.", "content": answers}
    return {"responses": {"200": found, "4XX": _REFUSED, "5XX": _REFUSED}}
