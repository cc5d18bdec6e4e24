"""The clock of the labs' measurements."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


class Timed:
    """A function or model that notes how long each of its calls took, in `elapsed_s`.

    With `repeats` each call is made that often and its best time noted, since other programs only ever add to it; that
    is for calls without side effects. On a GPU a call is over when its kernels are.
    """

    def __init__(self, call: Callable[..., Any], repeats: int = 1) -> None:
        self.call = call
        self.repeats = repeats
        self.elapsed_s: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tries_s = []
        for _ in range(self.repeats):
            _wait_for_gpu()
            start = time.perf_counter()
            result = self.call(*args, **kwargs)
            _wait_for_gpu()
            tries_s.append(time.perf_counter() - start)
        self.elapsed_s.append(min(tries_s))
        return result


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """Wall-clock seconds of one call, the best of `repeats`."""
    timed = Timed(call, repeats)
    timed()
    return timed.elapsed_s[0]


def fitted_exponent(times: Mapping[int, float]) -> float:
    """The b of t = a T^b: the slope of the straight line through log t against log T, by least squares."""
    lengths, elapsed_s = np.log(list(times)), np.log(list(times.values()))
    return float(np.polyfit(lengths, elapsed_s, 1)[0])
