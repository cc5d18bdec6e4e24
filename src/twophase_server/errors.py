"""Errors as clients get them: OpenAI's error body, with a status that says whether client or server is at fault."""

from collections.abc import Mapping
from typing import Any, final

from starlette.responses import Response

from twophase.core.errors import EngineDeadError, InvalidRequestError, TwophaseError
from twophase_features.serving.errors import DeadlineError, DrainingError, QueueFullError
from twophase_server.body import json_response

MAX_CHARACTERS = 2000  # of a message


@final
class ApiError(TwophaseError):
    """A refusal or a failure, as sent to the client.

    Attributes:
        status: HTTP status code.
        code: The kind of refusal, in one word for programs.
        param: The field at fault.
        headers: Additional response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_writable(message))
        self.status, self.code, self.param = status, code, None if param is None else _writable(param)
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        error = {"message": str(self), "type": _type_of(self.status), "param": self.param, "code": self.code}
        return {"error": error}

    def to_response(self) -> Response:
        return json_response(self.to_dict(), self.status, self.headers)


def _writable(text: str) -> str:
    """`text` without lone surrogates, which a client may have put into the name of a field."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]


def _type_of(status: int) -> str:
    """OpenAI's name for the status, if it has one."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 for a request that cannot be served."""
    return ApiError(400, message, code, param)


def as_api_error(error: TwophaseError) -> ApiError:
    """The HTTP error for an engine's exception.

    A deadline is 504: it was the server that took too long. (408 would say that the client did.)
    """
    if isinstance(error, InvalidRequestError):
        return invalid(str(error))
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), "queue_full")
    if isinstance(error, DrainingError):
        return ApiError(503, str(error), "draining")
    if isinstance(error, DeadlineError):
        return ApiError(504, str(error), "deadline_exceeded")
    if isinstance(error, EngineDeadError):
        return ApiError(500, str(error), "engine_dead")
    return ApiError(500, str(error))
