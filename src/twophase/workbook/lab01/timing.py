"""The clock of lab 1's measurements."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class Timed:
    """A function or model that notes how long each of its calls took, in `elapsed_s`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.elapsed_s: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = self.call(*args, **kwargs)
        self.elapsed_s.append(time.perf_counter() - start)
        return result


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """Wall-clock seconds of one call: the best of `repeats`, since other programs only ever add to it."""
    timed = Timed(call)
    for _ in range(repeats):
        timed()
    return min(timed.elapsed_s)


def fitted_exponent(times: Mapping[int, float]) -> float:
    """The b of t = a T^b: the slope of the straight line through log t against log T, by least squares."""
    lengths, elapsed_s = np.log(list(times)), np.log(list(times.values()))
    return float(np.polyfit(lengths, elapsed_s, 1)[0])
