"""When requests come: arrival processes in seconds from the workload's start."""

import abc
import itertools
import random
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import final

from twophase.core.rules import number, option
from twophase_tools.checked import Checked

# Squares and quotients of such numbers are far from a float's limits.
POSITIVE = number("a finite number in [1e-9, 1e9]", lambda x: 1e-9 <= x <= 1e9)


class Arrivals(Checked, abc.ABC):
    """An endless sequence of arrival times that never decrease. Implementations are final."""

    @abc.abstractmethod
    def times_s(self, rng: random.Random) -> Iterator[float]:
        """The times, drawn with nothing but `rng`."""


@final
@dataclass(frozen=True)
class AtOnce(Arrivals):
    """Everyone at time 0: a batch job, not traffic."""

    def times_s(self, rng: random.Random) -> Iterator[float]:
        return itertools.repeat(0.0)


@final
@dataclass(frozen=True)
class Poisson(Arrivals):
    """Many users who know nothing of each other: gaps are exponential, of mean 1 / rate_per_s."""

    rate_per_s: float | int = option(MISSING, POSITIVE)

    def times_s(self, rng: random.Random) -> Iterator[float]:
        return itertools.accumulate(rng.expovariate(self.rate_per_s) for _ in itertools.repeat(None))


@final
@dataclass(frozen=True)
class Bursty(Arrivals):
    """Gaps from a gamma distribution of mean 1 / rate_per_s: clusters and lulls.

    Its shape is 1 / cv^2 and its scale cv^2 / rate_per_s, so that mean and coefficient of variation are as asked.

    Attributes:
        cv: Standard deviation of a gap over its mean; 1 is Poisson, above 1 is burstier, near 0 is like clockwork.
    """

    rate_per_s: float | int = option(MISSING, POSITIVE)
    cv: float | int = option(MISSING, POSITIVE)

    def times_s(self, rng: random.Random) -> Iterator[float]:
        shape, scale_s = 1 / self.cv**2, self.cv**2 / self.rate_per_s
        return itertools.accumulate(rng.gammavariate(shape, scale_s) for _ in itertools.repeat(None))
