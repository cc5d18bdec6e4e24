"""Answers that prove the checks of exercises 4.10 and 4.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ARRIVAL, GAP, DIVIDES, SINGLE, WITHOUT, APART = (
    "measures TTFT from the arrival",
    "has a gap between two tokens",
    "divides by the number of gaps",
    "copes with a single token",
    "keeps requests without a token",
    "keeps requests apart",
)
FOUR, NUMPY, NONSENSE, BOTH, UNSERVED, ONE_TOKEN, RATE = (
    "finds a percentile of four values",
    "agrees with numpy",
    "refuses what is no percentage",
    "wants both limits kept",
    "counts the unserved as broken promises",
    "has nothing against a single token",
    "is a rate",
)
ONE_POT = """
def latencies(events):
    names = dict.fromkeys(name for _, name, _ in events)
    arrival = min(t for t, _, kind in events if kind == "arrival")
    times = [t for t, _, kind in events if kind == "token"]
    gaps = [b - a for a, b in zip(times, times[1:])]
    mean = sum(gaps) / len(gaps) if gaps else None
    return {name: {"ttft_s": times[0] - arrival if times else None, "itls_s": gaps, "tpot_s": mean} for name in names}
"""
SERVED_ONLY = """
def latencies(events):
    arrived, times = {}, {}
    for time_s, name, kind in events:
        if kind == "arrival":
            arrived[name] = time_s
        if kind == "token":
            times.setdefault(name, []).append(time_s)
    result = {}
    for name, tokens in times.items():
        gaps = [b - a for a, b in zip(tokens, tokens[1:])]
        mean = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": tokens[0] - arrived[name], "itls_s": gaps, "tpot_s": mean}
    return result
"""
BY_REQUEST = """
import statistics


def latencies(events):
    result = {}
    for name in sorted({name for _, name, _ in events}):
        own = [(t, kind) for t, who, kind in events if who == name]
        (arrival,) = [t for t, kind in own if kind == "arrival"]
        tokens = [t for t, kind in own if kind == "token"]
        gaps = [tokens[i] - tokens[i - 1] for i in range(1, len(tokens))]
        result[name] = dict(ttft_s=None, itls_s=gaps, tpot_s=None)
        if tokens:
            result[name]["ttft_s"] = tokens[0] - arrival
        if gaps:
            result[name]["tpot_s"] = statistics.fmean(gaps)
    return result
"""
GOODPUT = """
def goodput(requests, max_ttft_s, max_tpot_s, window_s):
    kept = 0
    for request in requests:
        if request["ttft_s"] is None or request["ttft_s"] > max_ttft_s:
            continue
        if request["tpot_s"] is None or request["tpot_s"] <= max_tpot_s:
            kept += 1
    return kept / window_s
"""
NUMPYS = f"""
import numpy


def percentile(values, percent):
    if percent < 0 or percent > 100:
        raise ValueError(percent)
    return float(numpy.quantile(numpy.array(values), percent / 100))

{GOODPUT}
"""
NEAREST = f"""
import math


def percentile(values, percent):
    if not 0 <= percent <= 100:
        raise ValueError(percent)
    in_order = sorted(values)
    return in_order[max(0, math.ceil(len(in_order) * percent / 100) - 1)]

{GOODPUT}
"""
SORTS_IN_PLACE = f"""
def percentile(values, percent):
    if not 0 <= percent <= 100:
        raise ValueError(percent)
    values.sort()
    position = (len(values) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])

{GOODPUT}
"""
REFUSES_NOTHING = f"""
def percentile(values, percent):
    in_order = sorted(values)
    position = (len(in_order) - 1) * min(100, max(0, percent)) / 100
    below = int(position)
    above = min(below + 1, len(in_order) - 1)
    return in_order[below] + (position - below) * (in_order[above] - in_order[below])

{GOODPUT}
"""
INTERPOLATES_OTHERWISE = f"""
def percentile(values, percent):
    if not 0 <= percent <= 100:
        raise ValueError(percent)
    in_order = sorted(values)
    position = (len(in_order) - 1) * percent / 100
    below, above = int(position), min(int(position) + 1, len(in_order) - 1)
    share = position % 1
    return (1 - share) * in_order[below] + share * in_order[above]

{GOODPUT}
"""

BANKS = {
    "4.10": Bank(
        wrong=(
            Wrong("from the start of the run", {1: "tokens[0] if tokens else None"}, ARRIVAL),
            Wrong("from the first event to the last token", {1: "tokens[-1] - arrived_s if tokens else None"}, ARRIVAL),
            Wrong(
                "a gap for the first token too",
                {2: "[tokens[0] - arrived_s] + [b - a for a, b in pairwise(tokens)] if tokens else []"},
                GAP,
            ),
            Wrong("from the first token on", {2: "[t - tokens[0] for t in tokens[1:]]"}, GAP),
            Wrong("earlier minus later", {2: "[a - b for a, b in pairwise(tokens)]"}, GAP),
            Wrong("divides by the tokens", {3: "sum(gaps) / len(tokens) if gaps else None"}, DIVIDES),
            Wrong("from the arrival on", {3: "(tokens[-1] - arrived_s) / len(tokens) if gaps else None"}, DIVIDES),
            Wrong("the longest gap", {3: "max(gaps) if gaps else None"}, DIVIDES),
            Wrong("0 for a single token", {3: "sum(gaps) / len(gaps) if gaps else 0.0"}, SINGLE),
            Wrong("divides by no gaps", {3: "sum(gaps) / len(gaps)"}, SINGLE),
            Wrong("0 for no token", {1: "tokens[0] - arrived_s if tokens else 0.0"}, WITHOUT),
            Wrong("leaves out who was never served", SERVED_ONLY, WITHOUT),
            Wrong("all in one pot", ONE_POT, WITHOUT),
        ),
        right=(
            Right("request by request", BY_REQUEST),
            Right(
                "from first and last token", {3: "(tokens[-1] - tokens[0]) / len(gaps) if len(tokens) > 1 else None"}
            ),
        ),
    ),
    "4.11": Bank(
        wrong=(
            Wrong("does not sort", {1: "list(values)"}, NUMPY),
            Wrong("n instead of n - 1", {2: "min(len(in_order) - 1, len(in_order) * percent / 100)"}, FOUR),
            Wrong("a share instead of per cent", {2: "(len(in_order) - 1) * percent"}, FOUR),
            Wrong("takes the lower one", {3: "in_order[below]"}, FOUR),
            Wrong("always the middle between two", {3: "(in_order[below] + in_order[above]) / 2"}, FOUR),
            Wrong("the nearest rank", NEAREST, FOUR),
            Wrong("sorts the caller's list", SORTS_IN_PLACE, NUMPY),
            Wrong("refuses nothing", REFUSES_NOTHING, NONSENSE),
            Wrong("only the first token", {5: "True"}, BOTH),
            Wrong("only the gaps", {4: "ttft_s is not None"}, BOTH),
            Wrong("strictly below", {4: "ttft_s is not None and ttft_s < max_ttft_s"}, BOTH),
            Wrong("the limits exchanged", {4: "ttft_s is not None and ttft_s <= max_tpot_s"}, BOTH),
            Wrong("no token is no violation", {4: "ttft_s is None or ttft_s <= max_ttft_s"}, UNSERVED),
            Wrong("needs two tokens", {5: "tpot_s is not None and tpot_s <= max_tpot_s"}, ONE_TOKEN),
            Wrong("a share instead of a rate", {6: "kept / len(requests)"}, BOTH),
            Wrong("a count", {6: "kept"}, BOTH),
            Wrong("of ten seconds, always", {6: "kept / 10"}, RATE),
        ),
        right=(
            Right("numpy's quantile", NUMPYS),
            Right("weights of both neighbours", INTERPOLATES_OTHERWISE),
        ),
    ),
}
