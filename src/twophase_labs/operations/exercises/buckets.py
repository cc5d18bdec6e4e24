"""8.3 and 8.4: what can be read out of histograms and counters."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, number, reject, unchanged
from twophase_labs.machine.exercise import exercise

QUANTILE = exercise(
    "8.3", "A quantile out of buckets", "histogram_quantile", points=3, minutes=5, lines=5, difficulty=2
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


RATE = exercise("8.4", "A counter that starts again", "rate", points=2, minutes=5, lines=8, difficulty=1, is_extra=True)
RATE.time_limit_s = 10
RATE.objective = "turn a counter into a rate, across restarts and missing samples"
RATE.hints = (
    "A counter only grows, unless its process was started anew: then it began at 0. What has been counted between "
    "100 and 7?",
    "Leave out the missing samples first. Then add up over neighbours: the difference, or after a reset the new "
    "value. Divide by the time from the first sample to the last.",
    "def rate(samples):\n"
    "    there = [...]                           # without None\n"
    "    if len(there) < 2:\n"
    "        return math.nan\n"
    "    grown = 0.0\n"
    "    for (_, before), (_, after) in pairwise(there):\n"
    "        grown += ... if after < before else ...\n"
    "    return grown / ...",
)

Samples = list[tuple[float, float | None]]


def by_parts(samples: Samples) -> float:
    """Per second: the lives of the process, one after the other, each but the first begun at 0."""
    there = [(time_s, value) for time_s, value in samples if value is not None]
    if len(there) < 2 or there[-1][0] == there[0][0]:
        return math.nan
    starts = [i for i in range(1, len(there)) if there[i][1] < there[i - 1][1]]
    lives = [there[a:b] for a, b in zip([0, *starts], [*starts, len(there)], strict=True)]
    grown = lives[0][-1][1] - lives[0][0][1] + sum(life[-1][1] for life in lives[1:])
    return grown / (there[-1][0] - there[0][0])


def rates(answer: Any, samples: Samples) -> None:
    theirs = list(samples)
    with unchanged(samples=theirs):
        got = number(answer.rate(theirs))
    if got is None:
        reject("rate returned no number", f"rate({samples})")
    expected = by_parts(samples)
    if math.isnan(expected) or math.isnan(got):
        if math.isnan(expected) != math.isnan(got):
            reject(f"rate is {got:g}, expected {expected:g}", f"rate({samples})")
        return
    try:
        compare(float(got), expected, what="the rate")
    except Rejected as error:
        reject(str(error), *error.details, f"rate({samples})")


@RATE.check("counts per second")
def counts_per_second(answer: Any, draw: Draw) -> None:
    """What it grew by, over the seconds that this took."""
    first = float(draw.integer(0, 1000))
    for every_s in (1.0, 15.0):
        rates(answer, [(100 + every_s * i, first + 6 * i) for i in range(5)])
    rates(answer, [(0.0, first), (2.0, first + 5), (10.0, first + 7)])


@RATE.check("bears a reset")
def bears_a_reset(answer: Any, draw: Draw) -> None:
    """A value below the one before means a process that began at 0: all of the new value was counted since."""
    rates(answer, [(0.0, 100.0), (10.0, 110.0), (20.0, float(draw.integer(1, 9))), (30.0, 15.0)])
    rates(answer, [(0.0, 100.0), (10.0, 0.0), (20.0, 0.0)])
    rates(answer, [(0.0, 5.0), (10.0, 5.0), (20.0, 9.0)])  # nothing in between is no reset
    rates(answer, [(0.0, 50.0), (10.0, 20.0), (20.0, 90.0), (30.0, 30.0), (40.0, 31.0)])


@RATE.check("bears missing samples")
def bears_gaps(answer: Any, draw: Draw) -> None:
    """A sample that is None says nothing: neither 0 nor the end of anything. The time counts from the first sample
    that is there to the last."""
    rates(answer, [(0.0, None), (10.0, 7.0), (20.0, None), (30.0, None), (40.0, 19.0), (50.0, None)])
    rates(answer, [(0.0, 40.0), (10.0, None), (20.0, 5.0), (30.0, 8.0)])


@RATE.check("says nan of too little")
def says_nan_of_too_little(answer: Any, draw: Draw) -> None:
    """One sample, or none, is no rate at all: math.nan."""
    for samples in ([], [(0.0, 3.0)], [(0.0, None), (10.0, 3.0), (20.0, None)], [(0.0, None), (10.0, None)]):
        rates(answer, list(samples))


@RATE.check("is right for any counter")
def any_counter(answer: Any, draw: Draw) -> None:
    """Each neighbouring pair adds what was counted between."""
    for _ in range(6):
        now_s, value, samples = 0.0, float(draw.integer(0, 50)), []
        for _ in range(draw.integer(2, 20)):
            now_s += draw.choice([5.0, 15.0, 40.0])
            value = float(draw.integer(0, 4)) if draw.integer(0, 5) == 0 else value + draw.integer(0, 9)
            samples.append((now_s, None if draw.integer(0, 4) == 0 else value))
        rates(answer, samples)
