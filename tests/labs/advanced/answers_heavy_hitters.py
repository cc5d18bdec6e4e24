"""Answers that prove the check of exercise 5.10."""

from twophase_labs.machine.bank import right, wrong

FITS, BUDGET, WINDOW = "keeps all that fits", "keeps to the budget", "is a window where all are recent"
LIGHTEST, ADDS, BACK = "drops the key with the least attention", "adds up over all queries", "never brings a key back"
NEWEST = "protects the newest"

DECIDES_ONCE_AT_THE = """
scores, num = (weights.sum(0).tolist(), len(weights))
recent = list(range(num))[max(0, num - num_recent):]
old = sorted(range(num - len(recent)), key=lambda key: (-scores[key], -key))
return sorted(old[:max(0, budget - len(recent))] + recent)
"""
CUMULATED = """
def heavy_hitters(weights, budget, num_recent):
    sums = weights.double().cumsum(0).numpy()
    held = []
    for query in range(len(weights)):
        held = held + [query]
        if len(held) > budget:
            may_go = np.array(held[: len(held) - num_recent])
            held.remove(int(may_go[np.argmin(sums[query, may_go])]))
    return held
"""
BY_DICT = """
def heavy_hitters(weights, budget, num_recent):
    score = {}
    for query, row in enumerate(weights.tolist()):
        score[query] = 0.0
        score = {key: value + row[key] for key, value in score.items()}
        if len(score) > budget:
            lightest = min((value, key) for key, value in score.items() if key <= query - num_recent)
            del score[lightest[1]]
    return sorted(score)
"""

# fmt: off
BANKS = {
    "5.10": (
        wrong("heaviest first", "return held", "return sorted(held, key=lambda key: -scores[key])", by=FITS),
        wrong("drops nothing", "len(held) > budget", "False", by=BUDGET),
        wrong("cuts off the last 0, which is all", "len(held) - num_recent", "-num_recent", by=BUDGET),
        wrong("the newest may go, too", "[: len(held) - num_recent]", "", by=WINDOW),
        wrong("counts queries, not their attention", "row[key]", "1.0", by=LIGHTEST),
        wrong("looks at the last query alone", "row[key]", "row[key] - scores[key]", by=ADDS),
        wrong("decides once, at the end", {1: DECIDES_ONCE_AT_THE}, by=BACK),
        wrong("drops the newer of equals", "min(may_go, key=lambda key: scores[key])",
              "min(reversed(may_go), key=lambda key: scores[key])", by=NEWEST),
        right("running sums beforehand", CUMULATED),
        right("a dict of scores", BY_DICT),
    ),
}
