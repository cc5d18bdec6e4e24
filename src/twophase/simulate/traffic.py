"""Requests that come by the clock, made one at a time, so that a day of them takes no memory."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from twophase.core.errors import ConfigError
from twophase.core.request import Request
from twophase.core.sampling_params import SamplingParams

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths, each uniform in a closed range."""

    prompt_lens: tuple[int, int]
    output_lens: tuple[int, int]

    def __post_init__(self) -> None:
        for low, high in (self.prompt_lens, self.output_lens):
            if not 1 <= low <= high:
                raise ConfigError(f"lengths are ranges (low, high) with 1 <= low <= high, got ({low}, {high}).")


WORKLOADS = {
    "chat": Lengths((50, 550), (50, 350)),
    "summary": Lengths((1000, 3000), (50, 150)),
    "bench": Lengths((100, 1024), (100, 1024)),  # lengths of nano-vllm's bench.py
    "short": Lengths((16, 128), (8, 48)),  # seconds, not minutes, on a CPU
}


def workload_named(name: str) -> Lengths:
    """Raises ConfigError for a name that is not in the table."""
    if name not in WORKLOADS:
        raise ConfigError(f"the workloads are {', '.join(WORKLOADS)}, got {name!r}.")
    return WORKLOADS[name]


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A rate that follows the sun: mean * (1 + swing * cos(2 pi (t - peak) / day)).

    Attributes:
        mean_per_s: Requests per second, averaged over the day.
        swing: How far it rises and falls, as a share of the mean, in [0, 1].
        peak_s: When it is highest, in seconds after midnight.
    """

    mean_per_s: float | int
    swing: float | int = 0.6
    peak_s: float | int = 15 * 3600

    def __post_init__(self) -> None:
        if not 0 <= self.swing <= 1:
            raise ConfigError(f"the swing is a share of the mean rate, in [0, 1], got {self.swing}.")

    def __call__(self, time_s: float | int) -> float:
        return self.mean_per_s * (1 + self.swing * math.cos(2 * math.pi * (time_s - self.peak_s) / DAY_S))

    @property
    def highest_per_s(self) -> float:
        return self.mean_per_s * (1 + self.swing)


def poisson_arrivals(rate_per_s: float | int, seed: int = 0) -> Iterator[float]:
    """Times of a Poisson process, without end; gaps are exponential. Raises ConfigError unless the rate is above 0."""
    _check_rate(rate_per_s)
    rng = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += rng.expovariate(rate_per_s)
        yield now_s


def varying_arrivals(rate: Callable[[float], float], highest_per_s: float | int, seed: int = 0) -> Iterator[float]:
    """Times of a Poisson process whose rate changes: arrivals at the highest rate, each kept with probability
    rate / highest (thinning: Lewis and Shedler, Naval Research Logistics 26(3), 1979)."""
    rng = random.Random(f"thinning {seed}")
    for time_s in poisson_arrivals(highest_per_s, seed):
        if rng.random() * highest_per_s < rate(time_s):
            yield time_s


def make_requests(arrivals: Iterator[float], lengths: Lengths, count: int, seed: int = 0) -> Iterator[Request]:
    """`count` requests of random lengths. Each one's prompt is a token of its own, repeated: nothing is shared."""
    if count < 1:
        raise ConfigError(f"there must be at least 1 request, got {count}.")
    return _requests(arrivals, lengths, count, seed)


def _requests(arrivals: Iterator[float], lengths: Lengths, count: int, seed: int) -> Iterator[Request]:
    rng = random.Random(f"lengths {seed}")
    params: dict[int, SamplingParams] = {}  # checked once for each length
    for i in range(count):
        prompt_len, output_len = rng.randint(*lengths.prompt_lens), rng.randint(*lengths.output_lens)
        if output_len not in params:
            params[output_len] = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        yield Request(f"{i}", (i,) * prompt_len, params[output_len], arrival_s=next(arrivals))


def _check_rate(rate_per_s: float | int) -> None:
    if not 0 < rate_per_s < math.inf:
        raise ConfigError(f"the rate must be above 0 requests per second and finite, got {rate_per_s}.")
