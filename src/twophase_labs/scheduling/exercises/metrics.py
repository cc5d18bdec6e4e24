"""4.6 Metrics from events: what a reader feels, what a machine gives, and what an average hides."""

from typing import Any

import numpy as np

from twophase_labs.machine.checks import Draw, compare, raises, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Matching, Number

Events = list[tuple[float, str, str]]
KEYS = ("ttft_s", "itls_s", "tpot_s")


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
    return got


def of_one(answer: Any, draw: Draw, key: str) -> None:
    events: Events = [(10.0, "A", "arrival"), (11.5, "A", "start")]
    events += [(t, "A", "token") for t in (12.0, 12.5, 14.0)] + [(14.0, "A", "end")]
    expected = {"ttft_s": 2.0, "itls_s": [0.5, 1.5], "tpot_s": 1.0}
    got = latency(answer, events)
    compare(set(got) == {"A"}, True, what="having A, and nobody else, in the result")
    value = got["A"][key]
    compare(list(value) if key == "itls_s" else value, expected[key], what=f"{key} of A")


def of_a_start_at_zero(answer: Any, draw: Draw) -> None:
    """The card's example; and tokens that come at the very moment of the arrival, or two at once."""
    events: Events = [(0.0, "A", "arrival"), (2.0, "A", "token"), (3.0, "A", "token"), (5.0, "A", "token")]
    expected = {"A": {"ttft_s": 2.0, "itls_s": [1.0, 2.0], "tpot_s": 1.5}}
    compare(latency(answer, events), expected, what="the result of the card's example")
    events = [(0.0, "A", "arrival"), (0.0, "A", "token"), (0.0, "A", "token"), (0.0, "A", "end")]
    expected = {"A": {"ttft_s": 0.0, "itls_s": [0.0], "tpot_s": 0.0}}
    compare(latency(answer, events), expected, what="the result of a request of which everything happens at 0.0")


def of_many(answer: Any, draw: Draw, num: int, most_tokens: int = 8) -> None:
    events, facts = drawn_events(draw, num, most_tokens)
    got = latency(answer, events)
    compare(sorted(got), sorted(facts), what="the requests in the result")
    for name, (arrival, times) in facts.items():
        gaps = np.diff(times).tolist()
        compare(got[name]["ttft_s"], times[0] - arrival, what=f"ttft_s of {name}")
        compare(list(got[name]["itls_s"]), gaps, what=f"itls_s of {name}", axes=("gap",))
        compare(got[name]["tpot_s"], float(np.mean(gaps)) if gaps else None, what=f"tpot_s of {name}")


def of_one_token(answer: Any, draw: Draw) -> None:
    events: Events = [(1.0, "A", "arrival"), (1.5, "A", "start"), (2.0, "A", "token"), (2.0, "A", "end")]
    compare(latency(answer, events), {"A": {"ttft_s": 1.0, "itls_s": [], "tpot_s": None}}, what="the result")


def of_no_token(answer: Any, draw: Draw) -> None:
    events: Events = [(1.0, "A", "arrival"), (1.2, "B", "arrival"), (1.5, "B", "start"), (2.0, "B", "token")]
    got = latency(answer, events)
    if "A" not in got:
        reject("A arrived, never got a token, and is missing in the result", "Who was never served is not to be lost.")
    compare(got["A"], {"ttft_s": None, "itls_s": [], "tpot_s": None}, what="the result of A, which has no token yet,")


# -- 4.11


def is_exact(answer: Any, draw: Draw, percent: int) -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    expected = float(np.percentile(values, percent))
    compare(float(answer.percentile(values, percent)), expected, what=f"the {percent}th percentile of 1, 2, 3, 4")


def is_like_numpy(answer: Any, draw: Draw, num: int) -> None:
    values = [draw.random.expovariate(1) for _ in range(num)]
    for percent in (0, 50, 90, 95, 99, 100, draw.random.uniform(0, 100)):
        with unchanged(values=values):
            got = answer.percentile(values, percent)
        compare(float(got), float(np.percentile(values, percent)), what=f"the {percent:g}th percentile of {num} values")


def refuses_nonsense(answer: Any, draw: Draw) -> None:
    for percent in (101, -1, 100.0001, -0.0001):
        raises(ValueError, answer.percentile, [1.0, 2.0], percent)


def one(ttft_s: float | None, tpot_s: float | None) -> dict[str, float | None]:
    return {"ttft_s": ttft_s, "tpot_s": tpot_s}


def goodput_of(answer: Any, requests: list[dict[str, float | None]], window_s: float = 10.0) -> float:
    return float(answer.goodput(requests, 1.0, 0.1, window_s))


def keeps_both(answer: Any, draw: Draw, case: str) -> None:
    requests, num_kept, why = {
        "both kept": ([one(0.5, 0.05)] * 4, 4, "all four keep both limits"),
        "late first token": ([one(0.5, 0.05), one(1.5, 0.05)], 1, "one of two has its first token too late"),
        "slow tokens": ([one(0.5, 0.05), one(0.5, 0.2)], 1, "one of two writes too slowly"),
        "exactly": ([one(1.0, 0.1)], 1, "exactly at the limit is within it"),
        "at once": ([one(0.0, 0.0), one(0.0, 0.2)], 1, "both first tokens came at once, and one writes too slowly"),
    }[case]
    compare(goodput_of(answer, list(requests)), num_kept / 10, what=f"the goodput, where {why},")


def counts_the_unserved(answer: Any, draw: Draw) -> None:
    got = goodput_of(answer, [one(0.5, 0.05), one(None, None)])
    compare(got, 0.1, what="the goodput, where one of two never got a token,")


def one_token_is_enough(answer: Any, draw: Draw) -> None:
    compare(
        goodput_of(answer, [one(0.5, None)]), 0.1, what="the goodput of a request of one token, which came in time,"
    )


def is_a_rate(answer: Any, draw: Draw) -> None:
    drawn = [(draw.random.uniform(0, 2), draw.random.uniform(0, 0.2)) for _ in range(40)]
    num_kept = sum(ttft_s <= 1.0 and tpot_s <= 0.1 for ttft_s, tpot_s in drawn)
    for window_s in (1.0, 25.0):
        requests = [one(*pair) for pair in drawn]
        compare(goodput_of(answer, requests, window_s), num_kept / window_s, what=f"the goodput in {window_s:g} s")


def tpot_with_a_stall() -> float:
    return (98 * 20 + 2000) / 99


EXERCISES = (
    Exercise(
        id="4.10",
        title="Latencies from events",
        kind="code",
        names=("latencies",),
        points=3,
        minutes=10,
        lines=5,
        difficulty=2,
        objective="compute TTFT, ITL and TPOT from what happened",
        hints=(
            "Collect for each request when it arrived and when its tokens came; the rest is subtraction.",
            "TTFT counts from the arrival, so the time in the queue is in it.",
            "n tokens have n - 1 gaps between them. With one token there is no gap, and with none no TTFT.",
        ),
        checks=(
            Property(
                "measures TTFT from the arrival",
                of_one,
                "The user has been waiting since the request arrived, not since somebody took it up.",
                ({"key": "ttft_s"},),
            ),
            Property(
                "has a gap between two tokens",
                of_one,
                "Each token's time minus that of the token before; the first has none before it.",
                ({"key": "itls_s"},),
            ),
            Property(
                "divides by the number of gaps",
                of_one,
                "TPOT is the mean gap: three tokens have two of them. The first token's wait is TTFT's, not TPOT's.",
                ({"key": "tpot_s"},),
            ),
            Property(
                "copes with a single token",
                of_one_token,
                "No gaps: `itls_s` is empty and `tpot_s` is None, not 0, which would be the best of all.",
            ),
            Property(
                "keeps requests without a token",
                of_no_token,
                "It arrived, so it belongs in the result: `ttft_s` and `tpot_s` are None, `itls_s` is empty.",
            ),
            Property(
                "keeps requests apart",
                of_many,
                "Events of all requests come mixed, in order of time; each event says whose it is.",
                ({"num": 2}, {"num": 6}, {"num": 40, "most_tokens": 300}),
            ),
            Property(
                "takes 0.0 for a time like any other",
                of_a_start_at_zero,
                "`if time_s` is false for 0.0; ask for None with `is None`.",
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="4.11",
        title="Percentiles and goodput",
        kind="code",
        names=("percentile", "goodput"),
        points=3,
        minutes=10,
        lines=6,
        difficulty=2,
        objective="say what the slowest users see, and how many promises are kept",
        hints=(
            "Sort first. With n values the 0th percentile is the first of them, the 100th the last, and n - 1 steps "
            "lie between.",
            "A position of 2.7 is 0.7 of the way from value 2 to value 3.",
            "A promise is kept if there is a first token, in time, and the mean gap is small enough or there is none.",
        ),
        checks=(
            Property(
                "finds a percentile of four values",
                is_exact,
                "The position is (n - 1) * percent / 100, counted from 0, in the *sorted* values; between two values "
                "it interpolates linearly.",
                ({"percent": 0}, {"percent": 100}, {"percent": 50}, {"percent": 90}),
            ),
            Property(
                "agrees with numpy",
                is_like_numpy,
                "Values come in any order, and there may be only one; `values` itself must stay as it is.",
                ({"num": 1}, {"num": 2}, {"num": 101}, {"num": 1500}),
            ),
            Property("refuses what is no percentage", refuses_nonsense, "Below 0 or above 100: ValueError."),
            Property(
                "wants both limits kept",
                keeps_both,
                "TTFT and TPOT at most at their limits, both of them.",
                (
                    {"case": "both kept"},
                    {"case": "late first token"},
                    {"case": "slow tokens"},
                    {"case": "exactly"},
                    {"case": "at once"},
                ),
            ),
            Property(
                "counts the unserved as broken promises",
                counts_the_unserved,
                "Without a first token nothing is kept.",
            ),
            Property(
                "has nothing against a single token",
                one_token_is_enough,
                "Where there is no gap, none is too long: only the first token counts.",
            ),
            Property("is a rate", is_a_rate, "Requests that kept their promise, per second of the window."),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="4.12",
        title="Two seconds, averaged away",
        kind="numeric",
        names=("answer_4_12",),
        points=1,
        minutes=3,
        objective="see how little of a stall a mean shows",
        hints=("The mean of all 99 gaps.",),
        question=Number(
            tpot_with_a_stall,
            rel=0.01,
            unit="ms",
            hint="98 gaps of 20 ms and one of 2,000 ms, divided by the number of gaps.",
        ),
    ),
    Exercise(
        id="4.13",
        title="Which number would have told?",
        kind="matching",
        names=("answer_4_13",),
        points=2,
        minutes=4,
        objective="choose the metric that shows a complaint",
        question=Matching(
            "abcde",
            {
                "nothing appears for a long time, then it goes fast": "b4ac70d33125f86a",
                "the text stops in mid-sentence, now and then, and goes on": "1e2075c21e0d113c",
                "the text comes evenly, but slower than one reads": "b6e53b01226c47cc",
                "the machine is busy, and hardly anybody gets what was promised": "4f5936b6b5084726",
                "a night's batch of a million summaries takes until noon": "f4c9b4388c2305a3",
            },
            hint="Who complains: somebody who waits for the start, who reads along, or who pays for the machine?",
        ),
    ),
)
