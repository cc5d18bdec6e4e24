"""Percentiles of any number of values in constant memory, with an error that is known beforehand."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import final

RELATIVE_ERROR = 0.01
SMALLEST, LARGEST = 1e-6, 1e6  # seconds: a microsecond to eleven days


@final
class Histogram:
    """Counts in buckets whose bounds grow by a constant factor, so that each value is known to within `RELATIVE_ERROR`.

    The buckets of DDSketch (Masson, Rim and Lee, VLDB 12(12), 2019, arXiv:1908.10693, section 2.1): with
    gamma = (1 + e) / (1 - e), bucket i holds (gamma^(i-1), gamma^i], and 2 gamma^i / (gamma + 1) is within e of all of
    it. Values below `SMALLEST` count as `SMALLEST`, values above `LARGEST` as `LARGEST`.
    """

    _GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
    _PER_LOG = 1 / math.log(_GAMMA)
    _FIRST = math.ceil(math.log(SMALLEST) * _PER_LOG)
    _NUM_BUCKETS = math.ceil(math.log(LARGEST) * _PER_LOG) - _FIRST + 1

    def __init__(self) -> None:
        self._counts = [0] * self._NUM_BUCKETS
        self.count = 0
        self.sum = 0.0
        self.max = 0.0

    def add(self, value: float | int, count: int = 1) -> None:
        """Count a value, `count` times."""
        self._counts[self._bucket(value)] += count
        self.count += count
        self.sum += value * count
        if value > self.max:
            self.max = float(value)

    def add_ascending(self, values: Sequence[float | int], count: int) -> None:
        """Count each of `values`, which never fall, `count` times: in few operations when they differ little."""
        start = 0
        while start < len(values):
            bucket = self._bucket(values[start])
            above = self._GAMMA ** (bucket + self._FIRST)
            end = max(start + 1, bisect_right(values, above, lo=start))
            self._counts[bucket] += count * (end - start)
            start = end
        if values:
            self.count += count * len(values)
            self.sum += math.fsum(values) * count
            self.max = max(self.max, float(values[-1]))

    def merge(self, other: "Histogram") -> None:
        """Count what `other` has counted, too."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def percentile(self, percent: float | int) -> float | None:
        """The value at rank ceil(percent / 100 * count), to within `RELATIVE_ERROR` of it; None without values.

        Raises:
            ValueError: `percent` is not in [0, 100].
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is asked for in per cent, in [0, 100], got {percent!r}.")
        rank = max(1, math.ceil(percent / 100 * self.count))
        num_below = 0
        for bucket, count in enumerate(self._counts):
            num_below += count
            if count and num_below >= rank:
                return 2 * self._GAMMA ** (bucket + self._FIRST) / (self._GAMMA + 1)
        return None

    def _bucket(self, value: float | int) -> int:
        if value <= SMALLEST:
            return 0
        return min(math.ceil(math.log(value) * self._PER_LOG) - self._FIRST, self._NUM_BUCKETS - 1)
