"""Percentiles of latencies, and goodput: what an average hides."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from twophase_tools.load.records import RequestRecord
from twophase_tools.load.slo import Slo


def percentile(values: Iterable[float | int], percent: float | int) -> float | None:
    """The value below which `percent` per cent of `values` lie, with linear interpolation; None without values.

    NumPy's default, 'linear': definition 7 of Hyndman and Fan, Sample Quantiles in Statistical Packages, The American
    Statistician 50(4), 1996. With n sorted values x[0..n-1] it lies at index h = (n - 1) * percent / 100.

    Worked example: the 90th percentile of 1, 2, 3, 4 is at h = 2.7, so it is 3 + 0.7 * (4 - 3) = 3.7.

    Raises:
        ValueError: `percent` is not in [0, 100].
    """
    there = list(values)
    return float(np.percentile(there, percent)) if there else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in a line; `percentile` says which definition. `count` is how many values it was taken over."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | int | None]) -> "Percentiles | None":
        """Over the values that are there; None when none is, for then there is nothing to report, not 0."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        p50, p90, p95, p99 = np.percentile(there, (50, 90, 95, 99)).tolist()
        return cls(len(there), math.fsum(there) / len(there), p50, p90, p95, p99, float(max(there)))


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of many requests; None: no request has one.

    A request counts as far as it came: one that was aborted after its first token has a time to first token. What
    never got a token is in no percentile of `ttft`, so under overload compare the counts before the percentiles.

    Attributes:
        queue, ttft, tpot, latency: A value per request, in seconds; see `RequestRecord`. `latency` is of requests that
            ran to their end: an abort would make it look short.
        itl: A value per gap between two tokens, so long outputs weigh more.
    """

    queue: Percentiles | None
    ttft: Percentiles | None
    itl: Percentiles | None
    tpot: Percentiles | None
    latency: Percentiles | None

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> "Latencies":
        return cls(
            queue=Percentiles.of(record.queue_s for record in records),
            ttft=Percentiles.of(record.ttft_s for record in records),
            itl=Percentiles.of(chain.from_iterable(record.itls_s for record in records)),
            tpot=Percentiles.of(record.tpot_s for record in records),
            latency=Percentiles.of(record.latency_s for record in records if record.is_completed),
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """Throughput that kept its promise (DistServe, arXiv:2401.09670, section 1).

    Attributes:
        num_promised: Requests; unfinished and failed ones are among them.
        num_met: Those that ran to their end within it.
        requests_per_s: `num_met` over the window; None for a window without length.
    """

    num_promised: int
    num_met: int
    requests_per_s: float | None

    @property
    def attainment(self) -> float:
        """Share of the promised requests that were kept, in [0, 1]."""
        return self.num_met / self.num_promised

    @classmethod
    def of(cls, records: Iterable[RequestRecord], slo: Slo | None, window_s: float | int) -> "Goodput | None":
        """None without a request or an SLO."""
        met = [is_met for record in records if (is_met := record.meets(slo)) is not None]
        return cls(len(met), sum(met), rate(sum(met), window_s)) if met else None


def rate(count: float | int, window_s: float | int) -> float | None:
    """Per second; None when no time passed."""
    return count / window_s if window_s > 0 else None
