"""How long prompts and outputs are: distributions over whole numbers of tokens."""

import abc
import math
import random
from dataclasses import dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase_tools.load.checks import require_at_least, require_positive


class Lengths(abc.ABC):
    """A distribution of lengths of at least one token. Implementations are final."""

    @abc.abstractmethod
    def draw(self, rng: random.Random) -> int:
        """One length; uses nothing but `rng`."""


@final
@dataclass(frozen=True, slots=True)
class UniformLengths(Lengths):
    """Every length in [low, high], both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _require_range(self.low, self.high)

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@final
@dataclass(frozen=True, slots=True)
class LogNormalLengths(Lengths):
    """Many short and a few very long ones, as in real traffic; what falls outside [low, high] is set to the limit.

    Attributes:
        median: Half of the lengths are below it, before clipping.
        sigma: Standard deviation of the logarithm; 0 is a fixed length, and at 1 one in 43 is above 7.4 medians.
    """

    median: float | int
    sigma: float | int
    low: int
    high: int

    def __post_init__(self) -> None:
        _require_range(self.low, self.high)
        require_positive("a lognormal length's median", self.median, "tokens")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ConfigError(f"a lognormal length's sigma must be a finite number >= 0, got {self.sigma!r}.")

    def draw(self, rng: random.Random) -> int:
        # Clipped in the logarithm, where nothing overflows.
        logarithm = rng.gauss(math.log(self.median), self.sigma)
        logarithm = min(max(logarithm, math.log(self.low)), math.log(self.high))
        return min(max(round(math.exp(logarithm)), self.low), self.high)


def _require_range(low: int, high: int) -> None:
    require_at_least("the shortest length", low, 1)
    if high < low:
        raise ConfigError(f"lengths must have low <= high, got low={low} and high={high}.")
