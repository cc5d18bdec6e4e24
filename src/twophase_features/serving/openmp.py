"""The threads PyTorch computes with on a CPU: each thread that computes has a pool of OpenMP workers of its own."""

import ctypes
import os

import torch

SOFT = 1  # omp_pause_soft: they come back with the next parallel operation


def dismiss_workers() -> None:
    """End the idle workers of the calling thread. Before another thread is to compute, while this one will not.

    GNU's OpenMP counts them all the same: when there are more threads than cores, every worker goes to sleep at the end
    of each operation, and waking it takes longer than most operations of a decode step (on two cores, 0.7 of the tokens
    per second remained). See `omp_pause_resource_all`, section 3.6.2 of the OpenMP API 5.0. Where PyTorch has another
    kind of threads, nothing happens.
    """
    # A symbol is also looked for in the libraries that this one was linked with.
    pause = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)
    if pause is not None:
        pause(SOFT)


if hasattr(os, "register_at_fork"):  # a fork has no workers, and would wait for them for ever
    os.register_at_fork(before=dismiss_workers)
