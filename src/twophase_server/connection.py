"""One connection of a client: the timeout for a request's arrival, and the error sent before closing."""

import asyncio
import re
import sys
import uuid
from typing import Any, final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from twophase_server.errors import ApiError
from twophase_server.service import Service

MAX_HEAD_BYTES = 64 * 1024  # bytes of a request's path and headers
MAX_CHUNKS = 16 * 1024  # of a body that is sent in chunks: each costs as much time as thousands of bytes
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


@final
class Messages(h11.Connection):
    """The client's messages, as h11 reads them, with a limit on the number of a body's chunks."""

    num_chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks = 0
        self.num_chunks += isinstance(event, h11.Data) and event.chunk_start
        if self.num_chunks > MAX_CHUNKS:
            raise h11.RemoteProtocolError(f"a body may have {MAX_CHUNKS} chunks at most", error_status_hint=413)
        return event


@final
class Connection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a timeout for requests, and JSON for all errors.

    The timeout counts from a request's first byte (of the first request: from the connection on) to the last byte of
    its body. It does not run while an answer is made or sent.
    """

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(**options)
        self.conn = Messages(h11.SERVER, MAX_HEAD_BYTES)
        self._service = service
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_reading(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        state = self.conn.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    @property
    def is_answering(self) -> bool:
        return self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def refuse(self, error: ApiError) -> None:
        """Answer the request with an error, unless its answer has begun, and close. Its endpoint sees a disconnected
        client."""
        if self.transport.is_closing():
            return
        self._service.metrics.note_refusal(error.status, error.code)
        has_head = self.conn.our_state is h11.SEND_RESPONSE
        if has_head or self.conn.our_state is h11.IDLE:
            response = error.to_response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            headers += self.cycle.default_headers if has_head else []
            body = b"" if has_head and self.scope["method"] == "HEAD" else bytes(response.body)
            head = h11.Response(status_code=error.status, headers=headers, reason=STATUS_PHRASES[error.status])
            for event in (head, h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    # -- called by uvicorn and asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # its task has not begun
            self._begin_request()
        if not self.is_reading:
            self._stop_timer()
        elif self._timer is None:
            self._set_timer()

    def send_400_response(self, msg: str) -> None:
        """Called while the error of h11 is handled."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        self.refuse(ApiError(status, f"this is not a valid HTTP/1.1 request for this server: {error}.", "bad_http"))

    def _begin_request(self) -> None:
        headers = dict(self.headers)
        own = headers.get(b"x-request-id", b"")
        request_id = own if _REQUEST_ID.fullmatch(own) else b"req-" + uuid.uuid4().hex.encode()
        self.cycle.default_headers = [*self.cycle.default_headers, (b"x-request-id", request_id)]
        if b"content-length" in headers and b"transfer-encoding" in headers:  # RFC 9112, section 6.1
            self.refuse(ApiError(400, "a request must not have content-length and transfer-encoding.", "bad_http"))

    # -- the timer

    def _set_timer(self) -> None:
        self._timer = self.loop.call_later(self._service.settings.read_timeout_s, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.is_reading:
            limit_s = self._service.settings.read_timeout_s
            self.refuse(ApiError(408, f"the request must arrive within {limit_s} s (--read-timeout).", "read_timeout"))
        else:  # it has never said a word
            self.transport.close()
