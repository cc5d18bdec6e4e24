"""Errors as clients get them: OpenAI's error body, with a status that says whether client or server is at fault."""

from collections.abc import Mapping
from typing import Any, final

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from twophase.core.errors import InvalidRequestError, TwophaseError
from twophase_features.serving.errors import DeadlineError, DrainingError, EngineDeadError, QueueFullError

MAX_CHARACTERS = 2000  # of a message
# Status and code of errors. A deadline is 504: it was the server that took too long. (408 would say that
# the client did.)
STATUSES: Mapping[type[Exception], tuple[int, str | None]] = {
    InvalidRequestError: (400, None),
    QueueFullError: (429, "queue_full"),
    DrainingError: (503, "draining"),
    DeadlineError: (504, "deadline_exceeded"),
    EngineDeadError: (500, "engine_dead"),
    ClientDisconnect: (499, "client_gone"),
    TwophaseError: (500, None),
}


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
        """OpenAI's body of an error."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def to_response(self) -> Response:
        return JSONResponse(self.to_dict(), self.status, self.headers)


def _writable(text: str) -> str:
    """`text` without lone surrogates, which a client may have put into the name of a field."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_CHARACTERS]


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 for a request that cannot be served."""
    return ApiError(400, message, code, param)


def as_api_error(error: Exception) -> ApiError:
    """The HTTP error for an exception. A bug's traceback goes to the log and not to the client."""
    if isinstance(error, ApiError):
        return error
    for kind, (status, code) in STATUSES.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), code)
    return ApiError(500, "the server failed on this request; its log has the reason.", "internal")
