"""A server in a thread, on a free port of this machine: for notebooks and tests."""

import contextlib
import threading
from collections.abc import Callable
from typing import final

from starlette.applications import Starlette

from twophase.llm import LLM
from twophase_features.serving.async_llm import AsyncLLM
from twophase_server.run import DrainingServer, check_certificate, listen
from twophase_server.settings import ServerSettings


@final
class BackgroundServer:
    """Serves from its construction until `stop` or the end of a `with` block.

    Args:
        llm: The engine to serve. Afterwards an `LLM` can be used directly again, and an `AsyncLLM` keeps running.
        settings: By default like `twophase serve`, silent, on a free port.

    Attributes:
        url: The server's address, 'http://127.0.0.1:PORT'. OpenAI's client needs '/v1' appended.

    Raises:
        ConfigError: As `twophase_server.run.serve`.
    """

    def __init__(self, llm: AsyncLLM | LLM, settings: ServerSettings | None = None) -> None:
        settings = ServerSettings(port=0, log_level="error") if settings is None else settings
        with contextlib.ExitStack() as own:
            if isinstance(llm, LLM):
                llm = AsyncLLM.of(llm, max_queue=settings.max_queue)
                own.callback(llm.close)
            self.llm: AsyncLLM = llm
            check_certificate(settings)
            self._server = DrainingServer(llm, settings)
            listener = listen(settings.host, settings.port)
            self._close_own = own.pop_all().close
        self.app: Starlette = self._server.app
        self.url = f"{settings.scheme}://{settings.host}:{listener.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="twophase-server", daemon=True
        )
        self._thread.start()
        self._loop = self._server.loop.result()

    def drain(self) -> None:
        """Refuse new requests; the server stops by itself when the last one is answered. Returns at once."""
        self._call(self._server.begin_drain)

    def stop(self) -> None:
        """Stop. Waiting clients get their answers, or an error if the server runs on a borrowed LLM. May be called
        again."""
        self._close_own()
        self._call(self._server.begin_drain)
        self._thread.join()

    def join(self) -> None:
        """Wait until the server has stopped."""
        self._thread.join()

    def _call(self, what: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def __enter__(self) -> "BackgroundServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
