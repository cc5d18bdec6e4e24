"""When requests come: arrival processes in seconds from the workload's start."""

import abc
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from twophase_tools.load.checks import require_positive


class Arrivals(abc.ABC):
    """An endless sequence of arrival times that never decrease. Implementations are final."""

    @abc.abstractmethod
    def times_s(self, rng: random.Random) -> Iterator[float]:
        """The times, drawn with nothing but `rng`."""


@final
@dataclass(frozen=True, slots=True)
class AtOnce(Arrivals):
    """Everyone at time 0: a batch job, not traffic."""

    def times_s(self, rng: random.Random) -> Iterator[float]:
        return itertools.repeat(0.0)


@final
@dataclass(frozen=True, slots=True)
class Poisson(Arrivals):
    """Many users who know nothing of each other: gaps are exponential, of mean 1 / rate_per_s."""

    rate_per_s: float | int

    def __post_init__(self) -> None:
        require_positive("the arrival rate", self.rate_per_s, "requests per second")

    def times_s(self, rng: random.Random) -> Iterator[float]:
        return itertools.accumulate(rng.expovariate(self.rate_per_s) for _ in itertools.repeat(None))


@final
@dataclass(frozen=True, slots=True)
class Bursty(Arrivals):
    """Gaps from a gamma distribution of mean 1 / rate_per_s: clusters and lulls.

    Its shape is 1 / cv^2 and its scale cv^2 / rate_per_s, so that mean and coefficient of variation are as asked.

    Attributes:
        cv: Standard deviation of a gap over its mean; 1 is Poisson, above 1 is burstier, near 0 is like clockwork.
    """

    rate_per_s: float | int
    cv: float | int

    def __post_init__(self) -> None:
        require_positive("the arrival rate", self.rate_per_s, "requests per second")
        require_positive("the coefficient of variation", self.cv)

    def times_s(self, rng: random.Random) -> Iterator[float]:
        shape, scale_s = 1 / self.cv**2, self.cv**2 / self.rate_per_s
        return itertools.accumulate(rng.gammavariate(shape, scale_s) for _ in itertools.repeat(None))
