"""How long prompts and outputs are: distributions over whole numbers of tokens."""

import abc
import math
import random
from dataclasses import MISSING, dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.rules import number, option, whole_number
from twophase_tools.checked import Checked
from twophase_tools.load.arrivals import POSITIVE

COUNT = whole_number(1)


class Lengths(Checked, abc.ABC):
    """A distribution of lengths of at least one token, in [low, high]. Implementations are final."""

    low: int
    high: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high < self.low:
            raise ConfigError(f"lengths must have low <= high, got low={self.low} and high={self.high}.")

    @abc.abstractmethod
    def draw(self, rng: random.Random) -> int:
        """One length; uses nothing but `rng`."""


@final
@dataclass(frozen=True)
class UniformLengths(Lengths):
    """Every length in [low, high], both included, equally often."""

    low: int = option(MISSING, COUNT)
    high: int = option(MISSING, COUNT)

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@final
@dataclass(frozen=True)
class LogNormalLengths(Lengths):
    """Many short and a few very long ones, as in real traffic; what falls outside [low, high] is set to the limit.

    Attributes:
        median: Half of the lengths are below it, before clipping.
        sigma: Standard deviation of the logarithm; 0 is a fixed length, and at 1 one in 43 is above 7.4 medians.
    """

    median: float | int = option(MISSING, POSITIVE)
    sigma: float | int = option(MISSING, number("a finite number >= 0", lambda x: x >= 0))
    low: int = option(MISSING, COUNT)
    high: int = option(MISSING, COUNT)

    def draw(self, rng: random.Random) -> int:
        # Clipped in the logarithm, where nothing overflows.
        logarithm = rng.gauss(math.log(self.median), self.sigma)
        logarithm = min(max(logarithm, math.log(self.low)), math.log(self.high))
        return min(max(round(math.exp(logarithm)), self.low), self.high)
