"""A process in which functions run with limits on time and memory.

Schemas and regular expressions are small programs that come with a request. Some take minutes or all of the machine's
memory, in a library that cannot be stopped from outside. A process can be stopped.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

from twophase.core.errors import TwophaseError

T = TypeVar("T")


class WorkLimitError(TwophaseError):
    """A function used more time or memory than its `WorkerProcess` allows; the process was ended."""


@final
class WorkerProcess:
    """Runs functions, one after the other, in a process that starts with the first call. Threads may share it.

    Args:
        cpu_s: Seconds of processor time that one call may take.
        max_bytes: Growth of the process during one call (on Linux: of its address space).
        first: A function and its arguments, called in each new process before its first call, without limits.
    """

    def __init__(self, *, cpu_s: float, max_bytes: int, first: tuple[Any, ...]) -> None:
        self.cpu_s, self.max_bytes, self._first = cpu_s, max_bytes, first
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in the process; returns its result, or raises its exception.

        Args:
            function: A module's function, which the process imports by its name; arguments and result are pickled.

        Raises:
            WorkLimitError: The function took too much time or memory; the message says which.
        """
        with self._lock:
            try:
                if self._process is None:
                    self._process = self._start()
                    _value_of(self._ask(self._process, (self._first[0], self._first[1:], None)))
                answer = self._ask(self._process, (function, args, (self.cpu_s, self.max_bytes)))
            except BaseException:  # also a Ctrl-C: an answer left unread would be the next call's
                self.close()
                raise
        return _value_of(answer)

    def close(self) -> None:
        """End the process; the next call starts another one."""
        if self._process is not None:
            self._stop()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._stop = weakref.finalize(self, _kill, process)
        return process

    def _ask(self, process: subprocess.Popen[bytes], question: tuple[Any, ...]) -> tuple[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has died, and its exit code says why
            pickle.dump(question, process.stdin)
            process.stdin.flush()
        with contextlib.suppress(EOFError):
            answer: tuple[str, Any] = pickle.load(process.stdout)
            return answer
        if process.wait() == -signal.SIGPROF:
            raise WorkLimitError(f"it takes longer than {self.cpu_s:g} s of processor time")
        raise WorkLimitError(
            f"it ends its process, with {process.wait()}, as when it takes more than {self.max_bytes // 2**20} MiB of "
            f"memory or calls itself too often"
        )


def _value_of(answer: tuple[str, Any]) -> Any:
    outcome, value = answer
    if outcome == "raised":
        raise value
    return value


def _kill(process: subprocess.Popen[bytes]) -> None:
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
            answers.write(_answer(*pickle.load(sys.stdin.buffer)))
            answers.flush()


def _answer(function: Callable[..., Any], args: tuple[Any, ...], limits: tuple[float, int] | None) -> bytes:
    try:
        with _limits(*limits) if limits else contextlib.nullcontext():
            return pickle.dumps(("returned", function(*args)))
    except MemoryError:
        return pickle.dumps(("raised", WorkLimitError("it takes more memory than it may")))
    except Exception as error:
        return pickle.dumps(("raised", error))


@contextlib.contextmanager
def _limits(cpu_s: float, max_bytes: int) -> Iterator[None]:
    """At the time limit the system ends this process; at the memory limit allocations fail."""
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
