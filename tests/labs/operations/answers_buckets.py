"""Answers that prove the checks of exercises 8.3 and 8.4."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BUCKET, ZERO, WITHIN, EMPTY, LAST, NAN, ANY = (
    "finds the bucket",
    "begins at 0",
    "interpolates within it",
    "passes over empty buckets",
    "ends at the last finite bound",
    "says nan of no values",
    "is right for any histogram",
)
SECOND, RESET, GAPS, LITTLE, COUNTER = (
    "counts per second",
    "bears a reset",
    "bears missing samples",
    "says nan of too little",
    "is right for any counter",
)
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
HEAD = """
def histogram_quantile(q, buckets):
    total = buckets[-1][1]
    if total == 0:
        return {empty}
    rank = q * total
    lower, before = {start}
    for bound, count in buckets:
        if count >= rank:
            break
        lower, before = bound, count
    if bound == math.inf:
        return {last}
    return lower + (bound - lower) * (rank - before) / (count - before)
"""
SORTS_IN_PLACE = HEAD.format(empty="math.nan", start="0.0, 0", last="lower").replace(
    "    total = buckets[-1][1]", "    total = buckets[-1][1]\n    buckets.pop() if total == buckets[-2][1] else None"
)
START = "def rate(samples):\n"
DIFFERENCE = (
    START
    + """
    there = [(t, v) for t, v in samples if v is not None]
    if len(there) < 2:
        return math.nan
    return (there[-1][1] - there[0][1]) / (there[-1][0] - there[0][0])
"""
)
BY_PAIRS = (
    START
    + """
    there = [(t, v) for t, v in samples if v is not None]
    if len(there) < 2:
        return math.nan
    grown = sum({pair} for (_, a), (_, b) in pairwise(there))
    return grown / {time}
"""
)
TIME = "(there[-1][0] - there[0][0])"


def by_pairs(pair: str, time: str = TIME) -> str:
    return BY_PAIRS.format(pair=pair, time=time)


RIGHT_PAIR = "b if b < a else b - a"
NONE_IS_ZERO = by_pairs(RIGHT_PAIR).replace("[(t, v) for t, v in samples if v is not None]", "[(t, v or 0.0) for t, v in samples]")  # fmt: skip
NONE_ENDS = by_pairs(RIGHT_PAIR).replace(
    "    there = [(t, v) for t, v in samples if v is not None]",
    "    import itertools\n\n    there = list(itertools.takewhile(lambda s: s[1] is not None, samples))",
)
LAST_PAIR = (
    START
    + """
    there = [(t, v) for t, v in samples if v is not None]
    if len(there) < 2:
        return math.nan
    (s, a), (t, b) = there[-2:]
    return (b if b < a else b - a) / (t - s)
"""
)
ZERO_OF_LITTLE = by_pairs(RIGHT_PAIR).replace("return math.nan", "return 0.0")
CRASHES = by_pairs(RIGHT_PAIR).replace("    if len(there) < 2:\n        return math.nan\n", "")
WITH_OFFSET = (
    START
    + """
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
)
WITH_NUMPY = (
    START
    + """
    import numpy as np

    there = np.array([(t, v) for t, v in samples if v is not None], dtype=float).reshape(-1, 2)
    if len(there) < 2:
        return float("nan")
    steps = np.diff(there[:, 1])
    return np.where(steps < 0, there[1:, 1], steps).sum() / (there[-1, 0] - there[0, 0])
"""
)

BANKS = {
    "8.3": Bank(
        wrong=(
            Wrong("one bucket further", {1: "count > rank"}, BUCKET),
            Wrong("the rank as a share", {1: "count >= q"}, BUCKET),
            Wrong("counts of single buckets", {1: "count - before >= rank"}, BUCKET),
            Wrong("no lower bound", {2: "0.0, count"}, WITHIN),
            Wrong("no count before", {2: "bound, 0"}, WITHIN),
            Wrong("the upper bound", {3: "bound"}, ZERO),
            Wrong("the lower bound", {3: "lower"}, BUCKET),
            Wrong("the middle", {3: "(lower + bound) / 2"}, BUCKET),
            Wrong("a share of the whole bound", {3: "bound * (rank - before) / (count - before)"}, WITHIN),
            Wrong("a share of all values", {3: "lower + (bound - lower) * (rank - before) / count"}, BUCKET),
            Wrong("counted from 0", {3: "lower + (bound - lower) * rank / count"}, WITHIN),
            Wrong("from its upper end", {3: "bound - (bound - lower) * (rank - before) / (count - before)"}, BUCKET),
            Wrong(
                "on a logarithmic scale",
                {
                    3: "lower * (bound / lower) ** ((rank - before) / (count - before)) if lower else bound * (rank - before) / (count - before)"
                },
                WITHIN,
            ),
            Wrong(
                "begins at the first bound", HEAD.format(empty="math.nan", start="buckets[0][0], 0", last="lower"), ZERO
            ),
            Wrong("infinite", HEAD.format(empty="math.nan", start="0.0, 0", last="bound"), LAST),
            Wrong("twice the last bound", HEAD.format(empty="math.nan", start="0.0, 0", last="2 * lower"), LAST),
            Wrong("nothing is 0", HEAD.format(empty="0.0", start="0.0, 0", last="lower"), NAN),
            Wrong("changes the buckets", SORTS_IN_PLACE, BUCKET),
        ),
        right=(
            Right("as Prometheus has it", AS_PROMETHEUS),
            Right("from the last bucket", BACKWARDS),
            Right("the complement", {3: "bound - (bound - lower) * (count - rank) / (count - before)"}),
        ),
    ),
    "8.4": Bank(
        wrong=(
            Wrong("last less first", DIFFERENCE, RESET),
            Wrong("resets count nothing", by_pairs("max(0.0, b - a)"), RESET),
            Wrong("resets as growth", by_pairs("abs(b - a)"), RESET),
            Wrong("the sum of the values", by_pairs("b"), SECOND),
            Wrong("not per second", by_pairs(RIGHT_PAIR, "1"), SECOND),
            Wrong("per sample", by_pairs(RIGHT_PAIR, "len(there)"), SECOND),
            Wrong("since time 0", by_pairs(RIGHT_PAIR, "there[-1][0]"), SECOND),
            Wrong("the last pair only", LAST_PAIR, SECOND),
            Wrong("every sample's time", by_pairs(RIGHT_PAIR, "(samples[-1][0] - samples[0][0])"), GAPS),
            Wrong("missing is 0", NONE_IS_ZERO, GAPS),
            Wrong("missing is the end", NONE_ENDS, GAPS),
            Wrong("0 of too little", ZERO_OF_LITTLE, LITTLE),
            Wrong("fails on too little", CRASHES, LITTLE),
            Wrong("an equal value is a reset", by_pairs("b if b <= a else b - a"), RESET),
        ),
        right=(
            Right("with an offset", WITH_OFFSET),
            Right("with numpy", WITH_NUMPY),
        ),
    ),
}
