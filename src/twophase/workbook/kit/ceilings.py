"""A device's two roofs, measured once per process: how fast it multiplies, and how fast its memory answers."""

from functools import cache

import torch

from twophase.bench.machine import measure_copy_bandwidth, measure_matmul_rate
from twophase.workbook.kernels import device

NUM_TRIES = 3  # the best of them: other programs only ever take away


@cache
def copy_bandwidth(on: torch.device = device) -> float:
    """Bytes per second to and from memory, read plus written, of a large copy; on a CPU, of as many threads as torch
    has been given."""
    return max(measure_copy_bandwidth(on, 2**28, repeats=3) for _ in range(NUM_TRIES))


@cache
def matmul_rate(on: torch.device = device) -> float:
    """FLOP per second of a large float32 matrix product."""
    size = 1024 if on.type == "cpu" else 4096
    return max(measure_matmul_rate(on, torch.float32, size, repeats=3) for _ in range(NUM_TRIES))
