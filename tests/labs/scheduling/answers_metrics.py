"""Answers that prove the checks of exercise 4.6."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ARRIVAL, GAP, DIVIDES, SINGLE, WITHOUT, APART = (
    "measures TTFT from the arrival",
    "has a gap between two tokens",
    "divides by the number of gaps",
    "copes with a single token",
    "keeps requests without a token",
    "keeps requests apart",
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
BANKS = {
    "4.6": Bank(
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
            Right("an array of gaps", {2: "np.diff(tokens)", 3: "float(gaps.mean()) if len(gaps) else None"}),
            Right(
                "from first and last token", {3: "(tokens[-1] - tokens[0]) / len(gaps) if len(tokens) > 1 else None"}
            ),
        ),
    ),
}

BANKS = opened_all(BANKS)
