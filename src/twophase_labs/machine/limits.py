"""Limits for code that may never end or want too much."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, process_time
from types import FrameType

GIB = 2**30
MAX_FILE_BYTES = 256 * 2**20
LOAD = 3  # on a machine that others use as well, a second of the processor may take that many by the clock
TICK_S = 0.05
GRACE_S = 3  # from the limit inside a process, which can say where the time went, to the kill from outside


class OutOfTime(BaseException):
    """Raised in the middle of running code. Not an Exception, so that `except Exception` does not swallow it."""


class Allowance:
    """Time for code that starts now: so many seconds of the processor, or `LOAD` times as many by the clock.

    By the clock alone a verdict would depend on what else the machine does: other programs, a disk that is slow the
    first time. By the processor alone code that sleeps would never end. What child processes compute is not counted.
    """

    def __init__(self, seconds: int | float) -> None:
        self._seconds = seconds
        self._cpu_s, self._clock_s = process_time(), monotonic()

    def left_s(self) -> float:
        """Seconds after which to ask again; 0 once the time is used up.

        Threads use the processor side by side, so it counts only what both the processor and the clock have spent.
        """
        cpu_s, clock_s = process_time() - self._cpu_s, monotonic() - self._clock_s
        return max(0.0, min(self._seconds - min(cpu_s, clock_s), LOAD * self._seconds - clock_s))


@contextmanager
def time_limit(seconds: int | float) -> Iterator[None]:
    """Raise `OutOfTime` in the code inside once its `Allowance` is used up.

    Works in the main thread of a POSIX process; elsewhere there is no limit but the one from outside (a hard kill).
    Code that stays in one C call, or swallows everything, is not interrupted either.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    allowance = Allowance(seconds)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if allowance.left_s() == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise OutOfTime

    previous = signal.signal(signal.SIGALRM, interrupt)
    # Armed once: a handler that arms the timer again could do so after the block has ended.
    signal.setitimer(signal.ITIMER_REAL, seconds, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def limit_this_process(memory_gib: int | float | None, cpu_s: int | float | None = None) -> None:
    """At most `memory_gib` of address space beyond the present; no core dumps, no huge files. Irrevocable.

    Address space is what Linux can limit per process; what is mapped already (torch's libraries) is not counted.
    Every process that this one starts has the same limits, of its own.
    """
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError in the code that writes says more than a dead process
    if cpu_s is not None:
        used = int(process_time() + cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used, used))
    if memory_gib is not None and sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        most = mapped + int(memory_gib * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
