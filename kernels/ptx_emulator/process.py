"""A compiling process beside an interpreting one: Triton's mode is fixed per process."""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from ptx_emulator.targets import compiler_environment

P = ParamSpec("P")
T = TypeVar("T")


class CompilingProcess:
    """Calls functions in a child process that was started without Triton's interpreter, with a kernel cache of its own.

    The child starts at the first call and lives until `close`, or the end of a `with`. Functions are named by module,
    so they must be importable there; arguments and results travel by pickle, as bytes.
    (`Connection.send` would hand over a tensor's memory by a file descriptor, which this child, no child of
    multiprocessing, may not fetch.)
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._cache: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """function(*args, **options), computed in the child. Its exceptions are raised here.

        Raises:
            RuntimeError: The child ended in the middle of it.
            ValueError: A function that cannot be imported.
        """
        if function.__module__ == "__main__":
            raise ValueError(
                f"{function.__qualname__} is defined in __main__, where the other process cannot import it."
            )
        pipe = self._started()
        pipe.send_bytes(pickle.dumps((function, args, options)))
        try:
            raised, result = pickle.loads(pipe.recv_bytes())
        except EOFError:
            status = self._child.wait() if self._child else None
            self.close()
            raise RuntimeError(f"the process that compiles ended with exit status {status}") from None
        except BaseException:  # an interrupt, say: the child would answer an abandoned call
            if self._child is not None:
                self._child.kill()
            self.close()
            raise
        if raised:
            raise result
        return result

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()  # the child reads the end and leaves
        if self._child is not None:
            self._child.wait()
        if self._cache is not None:
            self._cache.cleanup()
        self._child = self._pipe = self._cache = None

    def __enter__(self) -> "CompilingProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> Connection:
        if self._pipe is None:
            self._cache = tempfile.TemporaryDirectory()
            self._pipe, theirs = Pipe()
            environment = compiler_environment(self._cache.name) | {"PYTHONPATH": os.pathsep.join(sys.path)}
            code = f"from ptx_emulator.process import serve; serve({theirs.fileno()})"
            # A session of its own: an interrupt from the keyboard, or of a notebook's cell, is for the caller.
            self._child = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
        return self._pipe


def serve(pipe_number: int) -> None:
    """The child's life: calls until the pipe is closed."""
    pipe = Connection(pipe_number)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, args, options = pickle.loads(message)
            reply = pickle.dumps((False, function(*args, **options)))
        except Exception as error:
            error.add_note("In the process that compiles:\n" + traceback.format_exc())
            reply = pickle.dumps((True, _portable(error)))
        pipe.send_bytes(reply)


def _portable(error: Exception) -> Exception:
    """Itself, or, where it does not survive pickling (the compiler's own errors), another with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
