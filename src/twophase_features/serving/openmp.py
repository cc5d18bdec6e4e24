"""PyTorch's CPU threads: each thread that computes has its own pool of OpenMP workers."""

import ctypes

import torch

SOFT = 1  # omp_pause_soft: the workers return with the next parallel operation


def release_openmp_workers() -> None:
    """End the calling thread's idle workers. Call it before another thread takes over the computing.

    GNU's OpenMP counts idle workers: when there are more threads than cores, every worker goes to sleep at the end of
    each operation, and waking it takes longer than most operations of a decode step (on two cores, 0.7 of the tokens
    per second remained). See `omp_pause_resource_all`, section 3.6.2 of the OpenMP API 5.0. Does nothing where PyTorch
    uses other threads.
    """
    # The lookup includes the libraries with which torch is linked.
    pause = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)
    if pause is not None:
        pause(SOFT)
