"""A process in which functions run with limits on time and memory.

Schemas, regular expressions and chat templates are small programs that come with a request or a model. Some take
minutes or all of the machine's memory, in libraries that cannot be stopped from outside. A process can be stopped.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

from twophase.core.errors import TwophaseError

T = TypeVar("T")

# On a busy machine a function waits for its share of the processor. The limit counts the function's own time; this
# multiple of the limit bounds the whole wait, also where the system cannot measure a process's own time.
_PATIENCE = 10
# POSIX alone measures a process's own time and limits its memory; elsewhere the patience is the only limit.
_HAS_LIMITS = sys.platform != "win32"


class WorkLimitError(TwophaseError):
    """A function used more time or memory than its `WorkerProcess` allows; the process was ended."""


@final
class WorkerProcess:
    """Runs functions, one after the other, in a process that starts with the first call.

    Threads may share a `WorkerProcess`. After a fork the child starts its own process.

    Args:
        cpu_s: Seconds of processor time that one call may take.
        max_bytes: Growth of the process during one call. (Linux counts address space, macOS may not count.)
        first: A function and its arguments, called in each new process before its first call, without limits.
    """

    def __init__(self, *, cpu_s: float, max_bytes: int, first: tuple[Any, ...] = ()) -> None:
        self.cpu_s, self.max_bytes, self._first = cpu_s, max_bytes, first
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()
        self._stop: Callable[[], object] = lambda: None  # ends the process, at the latest when the interpreter ends

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in the process; returns its result, or raises its exception.

        Args:
            function: A module's function, which the process imports by its name; arguments and result are pickled.

        Raises:
            WorkLimitError: The function took too much time or memory; the message says which.
        """
        if self._owner_pid != os.getpid():  # the pipes are the parent's, and one of its threads may have held the lock
            self._process, self._owner_pid, self._lock = None, os.getpid(), threading.Lock()
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._process = self._start()
                    self._ask_first(self._process)
                until_s = time.monotonic() + _PATIENCE * self.cpu_s
                limits = (self.cpu_s, self.max_bytes)
                outcome, value = self._ask(self._process, pickle.dumps((function, args, limits)), until_s)
            except BaseException:  # also a Ctrl-C: an answer left unread would be the next call's
                self._end()
                raise
        if outcome == "raised":
            raise value
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from twophase_features.worker_process import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._stop = weakref.finalize(self, _kill, process, os.getpid())
        return process

    def _ask_first(self, process: subprocess.Popen[bytes]) -> None:
        if self._first:
            function, *args = self._first
            outcome, value = self._ask(process, pickle.dumps((function, args, None)), until_s=None)
            if outcome == "raised":
                raise value

    def _ask(self, process: subprocess.Popen[bytes], question: bytes, until_s: float | None) -> tuple[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has died, and its exit code says why
            pickle.dump(question, process.stdin)
            process.stdin.flush()
        if until_s is not None and sys.platform != "win32":  # where a pipe cannot be waited for
            left_s = max(0.0, until_s - time.monotonic())
            if not select.select([process.stdout], [], [], left_s)[0]:
                raise WorkLimitError(f"it takes longer than {_PATIENCE * self.cpu_s:g} s")
        with contextlib.suppress(EOFError):
            answer: tuple[str, Any] = pickle.load(process.stdout)
            return answer
        if _HAS_LIMITS and process.wait() == -signal.SIGPROF:
            raise WorkLimitError(f"it takes longer than {self.cpu_s:g} s of processor time")
        raise WorkLimitError(
            f"it ends its process, with {process.wait()}, as when it takes more than {self.max_bytes // 2**20} MiB of "
            f"memory or calls itself too often"
        )

    def _end(self) -> None:
        if self._process is not None:
            self._stop()
            self._process = None


def _kill(process: subprocess.Popen[bytes], owner_pid: int) -> None:
    if owner_pid == os.getpid():
        process.kill()
        process.communicate()  # closes the pipes


# -- in the worker process


def _serve() -> None:
    """Answer calls until the parent closes the pipe. The output of functions goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's matter
    with contextlib.suppress(EOFError):
        while True:
            answers.write(_answer(pickle.load(sys.stdin.buffer)))
            answers.flush()


def _answer(question: bytes) -> bytes:
    limits = None
    try:
        function, args, limits = pickle.loads(question)  # imports its module, before limits count
        with _limits(*limits) if limits else contextlib.nullcontext():
            return pickle.dumps(("returned", function(*args)))
    except MemoryError:
        more_than = f"more than {limits[1] // 2**20} MiB of memory" if limits else "all of the memory"
        return pickle.dumps(("raised", WorkLimitError(f"it takes {more_than}")))
    except Exception as error:
        return pickle.dumps(("raised", error))


@contextlib.contextmanager
def _limits(cpu_s: float, max_bytes: int) -> Iterator[None]:
    """At the time limit the system ends this process; at the memory limit allocations fail."""
    if not _HAS_LIMITS:
        yield
        return
    import resource

    try:
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        in_use = 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + max_bytes, before[1]))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
