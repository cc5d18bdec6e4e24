"""Percentiles and goodput by hand."""

import pytest

from tests.tools.load.timeline import RECORDS, A, C, D
from twophase_tools.load import latency
from twophase_tools.load.slo import Slo


def test_the_worked_example():
    assert latency.percentile([4, 1, 3, 2], 90) == pytest.approx(3.7, rel=1e-15)


def test_no_values_have_no_percentiles():
    assert latency.percentile([], 50) is None
    assert latency.Percentiles.of([]) is None
    assert latency.Percentiles.of([None, None]) is None
    with pytest.raises(ValueError, match=r"range \[0, 100\]"):
        latency.percentile([1], 101)


def test_a_distribution_in_a_line():
    found = latency.Percentiles.of([5.0, None, 1, 3.0])
    assert (found.count, found.mean, found.p50, found.max) == (3, 3.0, 3.0, 5.0)
    assert (found.p90, found.p95, found.p99) == pytest.approx((4.6, 4.8, 4.96))


def test_latencies_by_hand():
    found = latency.Latencies.of(RECORDS)
    assert (found.queue.count, found.queue.mean, found.queue.max) == (3, (1 + 7 + 39) / 3, 39)
    assert (found.ttft.count, found.ttft.p50, found.ttft.max) == (3, 26, 48)
    assert (found.itl.count, found.itl.mean) == (4, (10 + 10 + 40 + 20) / 4)
    assert (found.tpot.count, found.tpot.mean) == (2, 20)
    assert (found.latency.count, found.latency.max) == (3, 70)  # D was aborted: how soon says nothing
    assert latency.Latencies.of([D]) == latency.Latencies(None, None, None, None, None)
    assert latency.Latencies.of([C]).itl is None


def test_goodput_by_hand():
    slo = Slo(ttft_s=26, tpot_s=20)
    found = latency.Goodput.of(RECORDS, slo, 100)
    assert (found.num_promised, found.num_met, found.requests_per_s, found.attainment) == (4, 2, 0.02, 0.5)
    assert latency.Goodput.of(RECORDS, None, 100) is None
    assert latency.Goodput.of([], slo, 100) is None
    assert latency.Goodput.of([A], slo, 0).requests_per_s is None
