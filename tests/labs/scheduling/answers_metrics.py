"""Answers that prove the check of exercise 4.6."""

from twophase_labs.machine.bank import right, wrong

ARRIVAL, GAP = "measures TTFT from the arrival", "has a gap between two tokens"
DIVIDES, SINGLE = "divides by the number of gaps", "copes with a single token"
WITHOUT, APART = "keeps requests without a token", "keeps requests apart"
TAKES_0 = "takes 0.0 for a time like any other"

ONE_POT = """
def latencies(events):
    names = dict.fromkeys(name for _, name, _ in events)
    arrival = min(t for t, _, kind in events if kind == "arrival")
    times = [t for t, _, kind in events if kind == "token"]
    gaps = [b - a for a, b in zip(times, times[1:])]
    mean = sum(gaps) / len(gaps) if gaps else None
    return {name: {"ttft_s": times[0] - arrival if times else None, "itls_s": gaps, "tpot_s": mean} for name in names}
"""
AT_MOST_128_TOKENS = """
from itertools import pairwise

def latencies(events):
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token":
            tokens_of[name].append(time_s)
    result = {}
    for name, arrived_s in arrived.items():
        tokens = tokens_of[name][:128]
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = sum(gaps) / len(gaps) if gaps else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
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
FROM_FIRST_AND_LAST = """
from itertools import pairwise

def latencies(events):
    arrived, tokens_of = {}, {}
    for time_s, name, what in events:
        if what == "arrival":
            arrived[name], tokens_of[name] = time_s, []
        elif what == "token":
            tokens_of[name].append(time_s)
    result = {}
    for name, arrived_s in arrived.items():
        tokens = tokens_of[name]
        ttft_s = tokens[0] - arrived_s if tokens else None
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        tpot_s = (tokens[-1] - tokens[0]) / len(gaps) if len(tokens) > 1 else None
        result[name] = {"ttft_s": ttft_s, "itls_s": gaps, "tpot_s": tpot_s}
    return result
"""

# fmt: off
BANKS = {
    "4.6": (
        wrong("from the first event to the last token", "tokens[0]", "tokens[-1]", by=ARRIVAL),
        wrong("from the first token on", "tokens[i - 1] for i", "tokens[0] for i", by=GAP),
        wrong("the longest gap", "sum(gaps) / len", "max", by=DIVIDES),
        wrong("divides by no gaps", "(gaps) / len(gaps) if gaps else None", "(gaps) / len(gaps)", by=SINGLE),
        wrong("all in one pot", ONE_POT, by=WITHOUT),
        wrong("at most 128 tokens", AT_MOST_128_TOKENS, by=APART),
        wrong("tokens at 0.0 are lost", 'what == "token"', "what == 'token' and time_s", by=TAKES_0),
        right("request by request", BY_REQUEST),
        right("from first and last token", FROM_FIRST_AND_LAST),
    ),
}
