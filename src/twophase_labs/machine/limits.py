"""Limits for code that may never end or want too much."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GIB = 2**30
MAX_FILE_BYTES = 256 * 2**20
GRACE_S = 3  # from the limit inside a process, which can say where the time went, to the kill from outside


class OutOfTime(BaseException):
    """Raised in the middle of running code. Not an Exception, so that `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: int | float) -> Iterator[None]:
    """Raise `OutOfTime` in the code inside once the wall clock has run that long.

    Works in the main thread of a POSIX process; elsewhere there is no limit but the one from outside (a hard kill).
    Code that stays in one C call, or swallows everything, is not interrupted either.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def limit_this_process(memory_gib: int | float | None) -> None:
    """Never more than `memory_gib` of address space beyond the present; no core dumps, no huge files. Irrevocable.

    Address space is what Linux can limit per process; what is mapped already (torch's libraries) is not counted.
    """
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError in the code that writes says more than a dead process
    if memory_gib is not None and sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        most = mapped + int(memory_gib * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
