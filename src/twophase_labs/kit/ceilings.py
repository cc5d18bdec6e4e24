"""A device's two roofs, measured once per process: how fast it multiplies, and how fast its memory answers."""

from collections.abc import Callable
from functools import cache, partial

import torch

from twophase.model.linear import make_linear
from twophase_tools.bench.machine import median_time_s

NUM_TRIES = 5  # the best of them: other programs only ever take away
COPIED_BYTES = 2**28  # more than any cache holds


@cache
def copy_bandwidth(on: torch.device) -> float:
    """Bytes per second to and from memory, read plus written, of a large copy; on a CPU, of as many threads as torch
    has been given."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=on)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _least_s(lambda: target.copy_(source), on)


@cache
def matmul_rate(on: torch.device) -> float:
    """FLOP per second of a large float32 matrix product, by the faster of two ways: torch's product, and the linear
    layer of the engine. (On some CPUs they call different libraries, and one is nearly twice as fast.)"""
    size = 1024 if on.type == "cpu" else 4096
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(on) for _ in range(2))
    ways = partial(torch.matmul, a, b), partial(make_linear(b), a)
    return 2 * size**3 / min(_least_s(way, on) for way in ways)


def _least_s(call: Callable[[], object], on: torch.device) -> float:
    return min(median_time_s(call, on, repeats=1) for _ in range(NUM_TRIES))
