"""Answers that prove the checks of exercises 8.3 and 8.4."""

from twophase_labs.machine.bank import right, wrong

BUCKET, ZERO, WITHIN = "finds the bucket", "begins at 0", "interpolates within it"
LAST, NAN, SECOND = "ends at the last finite bound", "says nan of no values", "counts per second"
RESET, GAPS, LITTLE = "bears a reset", "bears missing samples", "says nan of too little"

BACKWARDS = """
def histogram_quantile(q, buckets):
    total = buckets[-1][1]
    if total == 0:
        return math.nan
    edges = [(0.0, 0), *buckets]
    at = len(edges) - 1
    while at > 1 and edges[at - 1][1] >= q * total:
        at -= 1
    (left, before), (right, count) = edges[at - 1], edges[at]
    if right == math.inf:
        return left
    share = (q * total - before) / (count - before)
    return (1 - share) * left + share * right
"""
AS_PROMETHEUS = """
def histogram_quantile(q, buckets):
    from bisect import bisect_left

    counts = [count for _, count in buckets]
    if not counts[-1]:
        return math.nan
    rank = q * counts[-1]
    at = bisect_left(counts, rank, hi=len(counts) - 1)
    if at == len(counts) - 1:
        return buckets[-2][0]
    start, end, count = 0.0, buckets[at][0], counts[at]
    if at:
        start, count, rank = buckets[at - 1][0], count - counts[at - 1], rank - counts[at - 1]
    return start + (end - start) * (rank / count)
"""
LAST_LESS_FIRST = """
there = [(t, v) for t, v in samples if v is not None]
if len(there) < 2:
    return math.nan
return (there[-1][1] - there[0][1]) / (there[-1][0] - there[0][0])
"""
WITH_NUMPY = """
def rate(samples):
    import numpy as np

    there = np.array([(t, v) for t, v in samples if v is not None], dtype=float).reshape(-1, 2)
    if len(there) < 2:
        return float("nan")
    steps = np.diff(there[:, 1])
    return np.where(steps < 0, there[1:, 1], steps).sum() / (there[-1, 0] - there[0, 0])
"""
WITH_OFFSET = """
def rate(samples):
    offset, first, last = 0.0, None, None
    for time_s, value in samples:
        if value is None:
            continue
        if last is not None and value < last[1] - offset:
            offset = last[1]
        last = (time_s, value + offset)
        first = first or last
    if first is None or first[0] == last[0]:
        return math.nan
    return (last[1] - first[1]) / (last[0] - first[0])
"""

# fmt: off
BANKS = {
    "8.3": (
        wrong("the lower bound", {3: "lower"}, by=BUCKET),
        wrong("the rank as a share", {1: "count >= q"}, by=BUCKET),
        wrong("the upper bound", {3: "bound"}, by=ZERO),
        wrong("begins at the first bound", "0.0, 0", "buckets[0][0], 0", by=ZERO),
        wrong("no count before", {2: "bound, 0"}, by=WITHIN),
        wrong("no lower bound", {2: "0.0, count"}, by=WITHIN),
        wrong("twice the last bound", "lower\n    return", "2 * lower\n    return", by=LAST),
        wrong("nothing is 0", "math.nan", "0.0", by=NAN),
        right("from the last bucket", BACKWARDS),
        right("as Prometheus has it", AS_PROMETHEUS),
    ),
    "8.4": (
        wrong("the sum of the values", "(time_s, value) for time_s, value in samples if value",
              "(t, v) for t, v in samples if v",
              "grown = 0.0\n    for (_, before), (_, after) in pairwise(there):\n        grown += after if after < before else after - before",
              "grown = sum((b for (_, a), (_, b) in pairwise(there)))", by=SECOND),
        wrong("last less first", {1: LAST_LESS_FIRST}, by=RESET),
        wrong("resets as growth", "(time_s, value) for time_s, value in samples if value",
              "(t, v) for t, v in samples if v",
              "grown = 0.0\n    for (_, before), (_, after) in pairwise(there):\n        grown += after if after < before else after - before",
              "grown = sum((abs(b - a) for (_, a), (_, b) in pairwise(there)))", by=RESET),
        wrong("missing is 0", "(time_s, value) for time_s, value in samples if value is not None",
              "(t, v or 0.0) for t, v in samples",
              "grown = 0.0\n    for (_, before), (_, after) in pairwise(there):\n        grown += after if after < before else after - before",
              "grown = sum((b if b < a else b - a for (_, a), (_, b) in pairwise(there)))", by=GAPS),
        wrong("fails on too little",
              {1: "there = [(t, v) for t, v in samples if v is not None]\ngrown = sum((b if b < a else b - a for (_, a), (_, b) in pairwise(there)))\nreturn grown / (there[-1][0] - there[0][0])"},
              by=LITTLE),
        right("with numpy", WITH_NUMPY),
        right("with an offset", WITH_OFFSET),
    ),
}
