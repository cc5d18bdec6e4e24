"""8.3: what can be read out of a histogram."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, number, reject, unchanged
from twophase_labs.machine.exercise import exercise

QUANTILE = exercise(
    "8.3", "A quantile out of buckets", "histogram_quantile", points=3, minutes=9, lines=5, difficulty=2
)
QUANTILE.time_limit_s = 15
QUANTILE.objective = "estimate a quantile from a histogram's buckets as Prometheus does, and know its error"
QUANTILE.hints = (
    "Of 10 values, 4 are at most 1 s and 9 at most 2 s. Where does the fifth lie? It is the first of five that lie "
    "between 1 s and 2 s, so a fifth of the way.",
    "The bucket is the first whose cumulative count reaches the rank. Its lower bound is the upper bound of the one "
    "before, 0 for the first.",
    "Within it: (rank - count before) / (count - count before) of the way from its lower to its upper bound. In the "
    "last bucket there is no upper bound; the answer is its lower one.",
)

Buckets = list[tuple[float, float]]
BOUNDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)


def cumulative(counts: Sequence[float], bounds: Sequence[float] = BOUNDS) -> Buckets:
    """Buckets as /metrics has them, from the number of values in each."""
    return list(zip((*bounds[: len(counts) - 1], math.inf), accumulate(counts), strict=True))


def by_search(q: float, buckets: Buckets) -> float:
    """The smallest time up to which the share q of all values lies, if each bucket's values are spread evenly in it."""
    total = buckets[-1][1]
    if not total:
        return math.nan
    finite = [(0.0, 0.0), *buckets[:-1]]
    if q * total > finite[-1][1]:
        return finite[-1][0]

    def num_below(time: float) -> float:
        for (left, before), (right, count) in pairwise(finite):
            if time <= right:
                return before + (count - before) * (time - left) / (right - left)
        raise AssertionError

    low, high = 0.0, finite[-1][0]
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if num_below(middle) >= q * total else (middle, high)
    return high


def follows(answer: Any, q: float, buckets: Buckets) -> None:
    theirs = list(buckets)
    with unchanged(buckets=theirs):
        got = number(answer.histogram_quantile(q, theirs))
    where = f"histogram_quantile({q:g}, {buckets})"
    if got is None:
        reject("histogram_quantile returned no number", where)
    expected = by_search(q, buckets)
    if math.isnan(expected):
        if not math.isnan(got):
            reject(f"the quantile of no values at all is {got:g}, expected nan", where)
        return
    try:
        compare(float(got), expected, what="the quantile", rtol=1e-9, atol=1e-9)
    except Rejected as error:
        reject(str(error), *error.details, where)


@QUANTILE.check("finds the bucket")
def finds_the_bucket(answer: Any, draw: Draw) -> None:
    """The first bucket whose cumulative count is at least q times all."""
    # Quantiles that lie on a bound: the values up to it are just their share.
    for at in range(1, 5):
        counts = [4.0] * 4 + [0.0]
        follows(answer, at / 4, cumulative(counts))


@QUANTILE.check("begins at 0")
def begins_at_zero(answer: Any, draw: Draw) -> None:
    """The first bucket reaches from 0 to its upper bound, and no count is before it."""
    for q in (0.1, 0.5, 1.0):
        follows(answer, q, cumulative([10.0, 0.0, 0.0]))


@QUANTILE.check("interpolates within it")
def interpolates(answer: Any, draw: Draw) -> None:
    """The bucket's own values are counted from the bucket before; they are taken to be spread evenly from its lower
    to its upper bound."""
    for _ in range(3):
        counts = [float(draw.integer(1, 20)) for _ in range(5)]
        follows(answer, draw.choice([0.3, 0.5, 0.75, 0.9]), cumulative([*counts, 0.0]))
    follows(answer, 0.5, cumulative([0.0, 0.0, 8.0, 0.0]))


@QUANTILE.check("passes over empty buckets")
def passes_empty_buckets(answer: Any, draw: Draw) -> None:
    """An empty bucket has the count of the one before it; the first that reaches the rank is meant."""
    for q in (0.25, 0.5, 0.75, 0.99):
        follows(answer, q, cumulative([0.0, 5.0, 0.0, 0.0, 5.0, 0.0, 0.0]))


@QUANTILE.check("ends at the last finite bound")
def ends_at_the_last_bound(answer: Any, draw: Draw) -> None:
    """Nothing is known of how far values in the +Inf bucket reach: the highest finite bound is all that can be said."""
    for q in (0.6, 0.99, 1.0):
        follows(answer, q, cumulative([3.0, 2.0, 0.0, 0.0, 5.0]))
    follows(answer, 0.5, cumulative([0.0, 0.0, 4.0]))


@QUANTILE.check("says nan of no values")
def says_nan(answer: Any, draw: Draw) -> None:
    """Without any value there is no quantile: math.nan."""
    follows(answer, 0.5, cumulative([0.0, 0.0, 0.0, 0.0]))


@QUANTILE.check("is right for any histogram")
def any_histogram(answer: Any, draw: Draw) -> None:
    """Draw the cumulative counts over the bounds."""
    for _ in range(8):
        counts = [float(draw.choice([0, 0, 1, 2, 7, 40])) for _ in range(draw.integer(2, 8))]
        bounds = tuple(accumulate(draw.integer(1, 9) / 16 for _ in counts))
        follows(answer, draw.integer(1, 65) / 64, cumulative(counts, bounds))
