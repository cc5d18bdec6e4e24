"""A process that compiles, beside one that interprets: Triton's mode is fixed per process."""

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, ParamSpec, TypeVar

from twophase_kernels.aot import compiler_environment

P = ParamSpec("P")
T = TypeVar("T")


class CompilingProcess:
    """Calls functions in a child process that was started without Triton's interpreter, with a kernel cache of its own.

    The child starts at the first call and lives until `close`, or the end of a `with`. Functions are named by module,
    so they must be importable there; arguments and results travel by pickle.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._cache: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """function(*args, **options), there. What it raises is raised here."""
        with _environment(self._cache_dir()):  # the pool starts its process when the first call is submitted
            future = self._started().submit(function, *args, **options)
        return future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._cache is not None:
            self._cache.cleanup()
        self._pool = self._cache = None

    def __enter__(self) -> "CompilingProcess":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _cache_dir(self) -> str:
        if self._cache is None:
            self._cache = tempfile.TemporaryDirectory()
        return self._cache.name

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not forked: the child would inherit this process's triton, which is in the other mode.
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        return self._pool


@contextmanager
def _environment(cache_dir: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(compiler_environment(cache_dir))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
