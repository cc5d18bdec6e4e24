"""Percentiles against sorted values, within the stated error."""

import math
import random

import pytest

from twophase_tools.simulate.histogram import LARGEST, RELATIVE_ERROR, SMALLEST, Histogram


@pytest.mark.parametrize("count", [1, 2, 10, 999])
def test_percentiles_within_the_stated_error(count):
    rng = random.Random(count)
    values = sorted(rng.lognormvariate(-2, 3) for _ in range(count))
    histogram = Histogram()
    for value in rng.sample(values, count):
        histogram.add(value)
    for percent in (0, 1, 50, 90, 99, 99.9, 100):
        exact = values[max(1, math.ceil(percent / 100 * count)) - 1]
        assert histogram.percentile(percent) == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-9))
    assert histogram.mean == pytest.approx(sum(values) / count)
    assert (histogram.count, histogram.max) == (count, values[-1])


def test_ascending_values_are_the_same_values():
    rng = random.Random(0)
    one_by_one, at_once, merged = Histogram(), Histogram(), Histogram()
    for _ in range(20):
        values = sorted(rng.uniform(0.01, 0.012) * rng.choice([1, 1, 40]) for _ in range(30))
        for value in values:
            one_by_one.add(value, 3)
        at_once.add_ascending(values, 3)
    merged.merge(at_once)
    for other in (at_once, merged):
        assert other._counts == one_by_one._counts
        assert other.sum == pytest.approx(one_by_one.sum)
        assert (other.count, other.max) == (one_by_one.count, one_by_one.max)


def test_edges():
    histogram = Histogram()
    assert histogram.percentile(50) is None
    assert histogram.mean is None
    histogram.add(0.0)
    histogram.add(1e12)
    assert histogram.percentile(0) == pytest.approx(SMALLEST, rel=0.03)
    assert histogram.percentile(100) == pytest.approx(LARGEST, rel=0.03)
    with pytest.raises(ValueError, match="in \\[0, 100\\]"):
        histogram.percentile(101)
