"""4.6 Latencies from events."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from twophase_labs.machine.checks import Draw, Rejected, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

METRICS = exercise(
    "4.6", "Latencies from events", "latencies", points=3, minutes=10, lines=5, difficulty=2, time_limit_s=10
)
METRICS.objective = "compute TTFT, ITL and TPOT from what happened"
METRICS.hints = (
    "Collect for each request when it arrived and when its tokens came; the rest is subtraction.",
    "TTFT counts from the arrival, so the time in the queue is in it.",
    "arrived, tokens_of = {}, {}\n"
    "for time_s, name, what in events:\n"
    "    ...                               # note the arrival, or add a token's time\n"
    "result = {}\n"
    "for name, arrived_s in arrived.items():\n"
    "    tokens = tokens_of[name]\n"
    "    gaps = ...                        # n tokens have n - 1 gaps between them\n"
    "    result[name] = {\n"
    "        'ttft_s': ... if tokens else None,\n"
    "        'itls_s': gaps,\n"
    "        'tpot_s': ... if gaps else None,\n"
    "    }\n"
    "return result",
)

Events = list[tuple[float, str, str]]
KEYS = ("ttft_s", "itls_s", "tpot_s")
MOST_SHOWN = 8


@contextmanager
def told_with(events: Events) -> Iterator[None]:
    """What fails in here is told with its events, the first of them if there are many."""
    try:
        yield
    except Rejected as error:
        lines = [f"({time_s:.4g}, {name!r}, {what!r})" for time_s, name, what in events[:MOST_SHOWN]]
        more = [f"and {len(events) - MOST_SHOWN} more"] if len(events) > MOST_SHOWN else []
        error.details = (*error.details, "events:", *lines, *more)
        raise


def drawn_events(draw: Draw, num: int, most_tokens: int) -> tuple[Events, dict[str, tuple[float, list[float]]]]:
    """Events of several requests, in order of time; and for each its arrival and its tokens' times."""
    facts: dict[str, tuple[float, list[float]]] = {}
    events: Events = []
    for number in range(num):
        name, arrival = f"r{number}", draw.random.uniform(0, 3) if number else 0.0
        start = now = arrival + draw.random.uniform(0.1, 2)
        times = []
        for _ in range(draw.integer(1, most_tokens + 1)):
            now += draw.random.expovariate(5) + 1e-3
            times.append(now)
        facts[name] = arrival, times
        events += [(arrival, name, "arrival"), (start, name, "start"), *((t, name, "token") for t in times)]
        events.append((times[-1], name, "end"))
    order = {"arrival": 0, "start": 1, "token": 2, "end": 3}
    return sorted(events, key=lambda event: (event[0], order[event[2]])), facts


def latency(answer: Any, events: Events) -> dict[str, dict[str, Any]]:
    with unchanged(events=events):
        got = answer.latencies(events)
    if not isinstance(got, dict) or any(not isinstance(one, dict) or set(one) != set(KEYS) for one in got.values()):
        reject(f"the result is {got!r}"[:200], f"expected a dict of dicts with the keys {', '.join(KEYS)}")
    return {name: one | {"itls_s": gaps_of(name, one["itls_s"])} for name, one in got.items()}


def gaps_of(name: str, gaps: Any) -> list[Any]:
    """A list, a tuple or an array of one dimension."""
    if not isinstance(gaps, list | tuple) and np.ndim(gaps) != 1:
        reject(f"itls_s of {name} is {gaps!r}, expected a list of numbers")
    return list(gaps)


@METRICS.check("measures TTFT from the arrival", key=("ttft_s",))
def of_one(answer: Any, draw: Draw, key: str) -> None:
    """The client has been waiting since the request arrived, not since its first step."""
    events: Events = [(10.0, "A", "arrival"), (11.5, "A", "start")]
    events += [(t, "A", "token") for t in (12.0, 12.5, 14.0)] + [(14.0, "A", "end")]
    expected = {"ttft_s": 2.0, "itls_s": [0.5, 1.5], "tpot_s": 1.0}
    with told_with(events):
        got = latency(answer, events)
        compare(set(got) == {"A"}, True, what="having A, and no other request, in the result")
        compare(got["A"][key], expected[key], what=f"{key} of A")


METRICS.check(
    "has a gap between two tokens",
    key=("itls_s",),
    hint="Each token's time minus that of the token before; the first has none before it.",
)(of_one)
METRICS.check(
    "divides by the number of gaps",
    key=("tpot_s",),
    hint="TPOT is the mean gap: three tokens have two of them. The first token's wait is TTFT's, not TPOT's.",
)(of_one)


@METRICS.check("copes with a single token")
def of_one_token(answer: Any, draw: Draw) -> None:
    """No gaps: `itls_s` is empty and `tpot_s` is None, not 0, which would be the best of all."""
    events: Events = [(1.0, "A", "arrival"), (1.5, "A", "start"), (2.0, "A", "token"), (2.0, "A", "end")]
    with told_with(events):
        compare(latency(answer, events), {"A": {"ttft_s": 1.0, "itls_s": [], "tpot_s": None}}, what="the result")


@METRICS.check("keeps requests without a token")
def of_no_token(answer: Any, draw: Draw) -> None:
    """It arrived, so it belongs in the result: `ttft_s` and `tpot_s` are None, `itls_s` is empty."""
    events: Events = [(1.0, "A", "arrival"), (1.2, "B", "arrival"), (1.5, "B", "start"), (2.0, "B", "token")]
    with told_with(events):
        got = latency(answer, events)
        if "A" not in got:
            reject(
                "A arrived, never got a token, and is missing in the result",
                "Requests that were never served count, too.",
            )
        empty: dict[str, Any] = {"ttft_s": None, "itls_s": [], "tpot_s": None}
        compare(got["A"], empty, what="the result of A, which has no token yet,")


@METRICS.check("keeps requests apart", {"num": 2}, {"num": 6}, {"num": 40, "most_tokens": 300})
def of_many(answer: Any, draw: Draw, num: int, most_tokens: int = 8) -> None:
    """Events of all requests come mixed, in order of time; each event says whose it is."""
    events, facts = drawn_events(draw, num, most_tokens)
    with told_with(events):
        got = latency(answer, events)
        compare(sorted(got), sorted(facts), what="the requests in the result")
    for name, (arrival, times) in facts.items():
        gaps = np.diff(times).tolist()
        with told_with([event for event in events if event[1] == name]):
            compare(got[name]["ttft_s"], times[0] - arrival, what=f"ttft_s of {name}")
            compare(got[name]["itls_s"], gaps, what=f"itls_s of {name}", axes=("gap",))
            compare(got[name]["tpot_s"], float(np.mean(gaps)) if gaps else None, what=f"tpot_s of {name}")


@METRICS.check("takes 0.0 for a time like any other")
def of_a_start_at_zero(answer: Any, draw: Draw) -> None:
    """`if time_s` is false for 0.0; ask for None with `is None`."""
    # The card's example; and tokens that come at the very moment of the arrival, or two at once.
    events: Events = [(0.0, "A", "arrival"), (2.0, "A", "token"), (3.0, "A", "token"), (5.0, "A", "token")]
    expected = {"A": {"ttft_s": 2.0, "itls_s": [1.0, 2.0], "tpot_s": 1.5}}
    with told_with(events):
        compare(latency(answer, events), expected, what="the result of the card's example")
    events = [(0.0, "A", "arrival"), (0.0, "A", "token"), (0.0, "A", "token"), (0.0, "A", "end")]
    expected = {"A": {"ttft_s": 0.0, "itls_s": [0.0], "tpot_s": 0.0}}
    with told_with(events):
        compare(latency(answer, events), expected, what="the result of a request of which everything happens at 0.0")
