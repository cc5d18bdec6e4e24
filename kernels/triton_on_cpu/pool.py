"""The threads that run kernels (pool.c): how many, and the compiled library."""

import ctypes
from functools import cache

import torch

from triton_on_cpu.compile import HERE, library

_num_threads: int | None = None


def set_num_threads(number: int | None) -> None:
    """How many threads run a kernel's programs, the caller among them; None: as many as torch uses (the default)."""
    global _num_threads
    if number is not None and number < 1:
        raise ValueError(f"a kernel needs at least one thread, got {number}")
    _num_threads = number


def num_threads() -> int:
    return _num_threads or torch.get_num_threads()


def list_of(launches: list[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    """Launches, each as runtime.h has it, for `pool_run` and `pool_start`; the array keeps them alive."""
    return (ctypes.c_char_p * len(launches))(*launches)


@cache
def pool() -> ctypes.CDLL:
    """The compiled pool.c, one for all kernels of this process."""
    loaded = library(HERE / "pool.c")
    loaded.pool_launch.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    loaded.pool_run.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64, ctypes.c_int32]
    loaded.pool_start.argtypes = loaded.pool_run.argtypes
    loaded.pool_wait.argtypes = [ctypes.c_int64]
    for function in (loaded.pool_launch, loaded.pool_run):
        function.restype = None
    return loaded
