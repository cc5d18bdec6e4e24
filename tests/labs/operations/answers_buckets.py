"""Answers that prove the check of exercise 8.3."""

from twophase_labs.machine.bank import right, wrong

BUCKET, ZERO, WITHIN = "finds the bucket", "begins at 0", "interpolates within it"
LAST, NAN = "ends at the last finite bound", "says nan of no values"

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
}
