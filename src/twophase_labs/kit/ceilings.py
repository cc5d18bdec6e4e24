"""A device's two roofs, measured once per process: how fast it multiplies, and how fast its memory answers."""

from functools import cache, partial

import torch

from twophase.model.linear import make_linear
from twophase_tools.bench.machine import measure_copy_bandwidth, median_time_s

NUM_TRIES = 8  # the best of them: other programs only ever take away


@cache
def copy_bandwidth(on: torch.device) -> float:
    """Bytes per second to and from memory, read plus written, of a large copy; on a CPU, of as many threads as torch
    has been given."""
    return max(measure_copy_bandwidth(on, 2**28, repeats=1) for _ in range(NUM_TRIES))


@cache
def matmul_rate(on: torch.device) -> float:
    """FLOP per second of a large float32 matrix product, by the faster of two ways: torch's product, and the linear
    layer of the engine. (On some CPUs they call different libraries, and one is nearly twice as fast.)"""
    size = 1024 if on.type == "cpu" else 4096
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(on) for _ in range(2))
    ways = partial(torch.matmul, a, b), partial(make_linear(b), a)
    return max(2 * size**3 / median_time_s(way, on, repeats=1) for way in ways for _ in range(NUM_TRIES))
