"""The server as a process: it listens until a signal, and then finishes accepted requests."""

import asyncio
import functools
import signal
import socket
import ssl
import sys
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import final

import uvicorn

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server.app import create_app
from twophase_server.connection import Connection
from twophase_server.errors import ApiError
from twophase_server.service import Service, draining
from twophase_server.settings import ServerSettings
from twophase_server.tenants import read_tenants

BACKLOG = 2048  # connections that the system accepts while the server is busy
KEEP_ALIVE_S = 75  # idle seconds of a connection: longer than clients' own limits, so that clients close first
LAST_WORDS_S = 1  # minimum, for the errors that waiting clients get at the end


def serve(model: str | Path, config: EngineConfig | None = None, settings: ServerSettings | None = None) -> None:
    """Open a model and serve it until SIGTERM or Ctrl-C; then finish accepted requests. A second signal ends it at
    once.

    Raises:
        ConfigError: The port is taken, or the file of API keys cannot be used; or as `LLM`.
        ModelFolderError, BackendUnavailableError: As `LLM`.
    """
    settings = ServerSettings() if settings is None else settings
    if settings.api_keys is not None:
        read_tenants(Path(settings.api_keys))  # unusable options are refused before the model is loaded
    check_certificate(settings)
    with listen(settings.host, settings.port) as listener:
        llm = AsyncLLM(model, config, max_queue=settings.max_queue)
        try:
            server = DrainingServer(llm, settings)
            host, port = listener.getsockname()[:2]
            address = f"{settings.scheme}://{host}:{port}/v1"
            print(f"twophase serve: {server.service.model_name} on {address}", file=sys.stderr, flush=True)
            server.run(sockets=[listener])
        finally:
            llm.close()


def check_certificate(settings: ServerSettings) -> None:
    """Raises ConfigError if the certificate or its key cannot be used."""
    if settings.ssl_certfile is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, "")
        except OSError as error:  # an SSLError is one
            raise ConfigError(
                f"cannot use ssl_certfile {str(settings.ssl_certfile)!r} with ssl_keyfile {settings.ssl_keyfile!r}: "
                f"{error}."
            ) from error


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; clients wait in its backlog until it is served.

    It must listen before a model is loaded: with SO_REUSEADDR several sockets may be bound to a port until one listens.
    Raises ConfigError if the address cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on host {host!r}, port {port}: {error.strerror}; try another port."
        ) from error


@final
class DrainingServer(uvicorn.Server):
    """Stops in two steps: new requests get a 503 until all accepted requests are answered; then the process ends.

    Attributes:
        loop: The event loop, as soon as the server listens.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        self.app = create_app(llm, settings)
        self.service: Service = self.app.state.service
        self.loop: Future[asyncio.AbstractEventLoop] = Future()
        self._settings = settings
        self._draining: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            self.app,
            loop="asyncio",
            http=functools.partial(Connection, self.service),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_level=settings.log_level,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop.set_result(asyncio.get_running_loop())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGINT, called in the main thread between any two Python instructions."""
        if self.loop.done():
            self.loop.result().call_soon_threadsafe(self._on_signal, sig)
        else:
            self.should_exit = True

    def _on_signal(self, sig: int) -> None:
        if self._draining is None:
            self.begin_drain()
            num = self.service.num_in_flight
            name = signal.Signals(sig).name
            print(f"twophase serve: {name}: finishing {num} requests; again ends it at once", file=sys.stderr)
        else:
            for connection in self._connections:
                if connection.is_answering:
                    connection.refuse(ApiError(503, "the server was stopped before it had answered.", "draining"))
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._cut_off)
            self.should_exit = self.force_exit = True

    def begin_drain(self) -> None:
        """Refuse new and half-received requests, and stop when the last accepted one is answered. Runs in the server's
        event loop.
        """
        if self._draining is None:
            self.service.is_draining = True
            for connection in self._connections:
                if connection.is_reading:
                    connection.refuse(draining())
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        service = self.service
        if service.llm.is_alive:
            try:
                await asyncio.wait_for(service.is_idle.wait(), self._settings.drain_timeout_s)
            except TimeoutError:
                await asyncio.to_thread(service.llm.close)  # clients that still wait get an error
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until clients have received their answers, and disconnect clients that do not read."""
        limits_s = (self._settings.read_timeout_s, self._settings.drain_timeout_s)
        patience_s = max(LAST_WORDS_S, min(limit_s for limit_s in limits_s if limit_s is not None))
        timer = asyncio.get_running_loop().call_later(patience_s, self._cut_off)
        await super().shutdown(sockets)
        timer.cancel()

    def _cut_off(self) -> None:
        for connection in self._connections:
            connection.transport.abort()

    @property
    def _connections(self) -> list[Connection]:
        return [each for each in self.server_state.connections if isinstance(each, Connection)]
