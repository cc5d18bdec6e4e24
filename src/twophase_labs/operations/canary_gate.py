"""What a canary is judged by: lines with an interval each, and where intervals of rates come from."""

import math
from dataclasses import dataclass

from twophase_labs.operations.selection import wilson_interval

Z_95 = 1.959964


@dataclass(frozen=True)
class Line:
    """One thing that may become worse, and how much of it has.

    Attributes:
        low, high: The interval of what is lost, in the line's own unit: requests that fail, milliseconds of p99.
        bound: What may be lost, in the same unit; positive.
        weight: Of this line in the mean of all.
        is_hard: Whether the canary is rolled back for this line alone.
    """

    name: str
    low: float
    high: float
    bound: float
    weight: float = 1.0
    is_hard: bool = False

    def __str__(self) -> str:
        kind = "hard" if self.is_hard else f"weight {self.weight:g}"
        low, high = (min(1.0, max(0.0, loss / self.bound)) for loss in (self.low, self.high))
        used = f"used {low:4.0%} to {high:4.0%}"
        return f"{self.name:<18} {self.low:6.3f} to {self.high:6.3f}, at most {self.bound:g} ({kind}): {used}"


def wilson(num_passed: int, num: int, z: float = Z_95) -> tuple[float, float]:
    """The interval of a rate of which `num` requests have been seen: [low, high] in [0, 1], and all of it for none.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    >>> wilson(0, 0)
    (0.0, 1.0)
    """
    return wilson_interval(num_passed, num, z) if num else (0.0, 1.0)


def lost(before: tuple[int, int], after: tuple[int, int], z: float = Z_95) -> tuple[float, float]:
    """The interval of how much lower the rate is `after`, from (passed, requests) of two independent sides.

    Newcombe's (1998) from two Wilson intervals: each side's own distance to its ends, added as squares.
    """
    rate, new = (passed / num if num else 0.5 for passed, num in (before, after))
    (low, high), (new_low, new_high) = wilson(*before, z), wilson(*after, z)
    difference = rate - new
    return (
        difference - math.hypot(rate - low, new_high - new),
        difference + math.hypot(high - rate, new - new_low),
    )
