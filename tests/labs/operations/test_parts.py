"""What sections 1 to 3 of lab 8 are made of: clients, scrapes, six terms that add up, alerts played over a burst."""

import math

import pytest
from prometheus_client.samples import Sample

from twophase_labs.operations import burst, clients, scrapes


def sample(name, value, **labels):
    return Sample(f"twophase:{name}", {"model_name": "m", **labels}, float(value))


def scraped(at_s=0.0, *, counts=(1, 3, 4), refused=0):
    """A histogram of counts up to 1 s, 2.5 s and any time; refusals with two codes."""
    bounds = ("1.0", "2.5", "+Inf")
    samples = [sample("time_to_first_token_seconds_bucket", c, le=le) for le, c in zip(bounds, counts, strict=True)]
    samples += [
        sample("time_to_first_token_seconds_count", counts[-1]),
        sample("time_to_first_token_seconds_sum", 8),
        sample("requests_refused_total", refused, status="429", code="queue_full"),
        sample("requests_refused_total", 5, status="400", code=""),
    ]
    return scrapes.Scrape(at_s, tuple(reversed(samples)))


def test_buckets_come_in_order_and_a_mean_needs_values():
    assert scraped().buckets(scrapes.TTFT) == [(1.0, 1), (2.5, 3), (math.inf, 4)]
    assert scraped().mean(scrapes.TTFT) == 2
    assert math.isnan(scraped(counts=(0, 0, 0)).mean(scrapes.TTFT))


def test_late_answers_are_counted_since_the_first_scrape():
    first, now = scraped(counts=(1, 3, 4)), scraped(counts=(2, 5, 10))
    assert burst.late_share(now, first) == pytest.approx(4 / 6)
    assert burst.late_share(first, first) == 0
    assert burst.VALUES["refusals"](scraped(refused=9), scraped(refused=2)) == 7


def answer(sent_s, first_s):
    return clients.Answer(clients.Ask("?"), 200, "", "", sent_s, sent_s, first_s, sent_s + 9)


@pytest.mark.parametrize(
    ("answers", "late_s"),
    [
        ([(10.0, 11.0), (12.0, 13.9)], None),
        ([(10.0, 11.0), (12.0, 14.1), (11.0, 20.0)], 3.0),
        ([(10.0, 10.5), (10.5, None)], 2.5),  # one that never gets a token is late, too
    ],
)
def test_a_client_is_late_when_its_slo_has_passed(answers, late_s):
    seen = burst.Burst((scraped(10.0),), tuple(answer(*times) for times in answers))
    assert seen.first_late_s == late_s


def test_alerts_see_each_scrape_once_with_its_time():
    class Spy:
        def evaluate(self, now_s, value):
            calls.append((now_s, value))
            return "firing" if value > 3 else "inactive"

    calls: list = []
    seen = burst.Burst(tuple(scraped(10.0 + i, refused=2 * i) for i in range(4)), (answer(10.0, 10.1),))
    (told,) = burst.play(seen, [("refusals", Spy())])
    assert calls == [(0.0, 0), (1.0, 2), (2.0, 4), (3.0, 6)]
    assert told.first_firing_s == 2.0
    assert "fires after  2.00 s" in told.line
