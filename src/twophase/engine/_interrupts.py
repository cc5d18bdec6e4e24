"""Ctrl-C between, never inside, the changes that belong together."""

import signal
import threading
from types import FrameType, TracebackType
from typing import final


@final
class Uninterrupted:
    """A `with` block that a SIGINT cannot cut in two: it takes effect when the block has ended.

    Python delivers signals to the main thread alone, so elsewhere the block needs no protection. Blocks may be nested.
    """

    def __init__(self) -> None:
        self._pending: tuple[int, FrameType | None] | None = None
        self._previous: signal._HANDLER = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            if callable(self._previous):  # else no Python code would be called
                signal.signal(signal.SIGINT, self._postpone)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if callable(self._previous):
            signal.signal(signal.SIGINT, self._previous)
            if self._pending is not None:
                self._previous(*self._pending)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        self._pending = (number, frame)
