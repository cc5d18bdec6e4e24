"""Answers that prove the check of exercise 5.12."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

FITS, BUDGET, WINDOW, LIGHTEST, ADDS, NEWEST, BACK, OLDER, AGREES = (
    "keeps all that fits",
    "keeps to the budget",
    "is a window where all are recent",
    "drops the key with the least attention",
    "adds up over all queries",
    "protects the newest",
    "never brings a key back",
    "drops the older of two equal ones",
    "agrees with a plain cache",
)
AT_THE_END = """
def heavy_hitters(weights, budget, num_recent):
    scores, num = weights.sum(0).tolist(), len(weights)
    recent = list(range(num))[max(0, num - num_recent):]
    old = sorted(range(num - len(recent)), key=lambda key: (-scores[key], -key))
    return sorted(old[: max(0, budget - len(recent))] + recent)
"""
IN_PLACE = """
def heavy_hitters(weights, budget, num_recent):
    held = []
    for query in range(len(weights)):
        held.append(query)
        if query:
            weights[query] += weights[query - 1]
        if len(held) > budget:
            held.remove(min(held[: len(held) - num_recent], key=lambda key: float(weights[query, key])))
    return held
"""
TENSORS = """
def heavy_hitters(weights, budget, num_recent):
    num = len(weights)
    scores, is_held = torch.zeros(num, dtype=torch.float64), torch.zeros(num, dtype=torch.bool)
    for query in range(num):
        is_held[query] = True
        scores += torch.where(is_held, weights[query].double(), 0)
        if int(is_held.sum()) > budget:
            may_go = is_held.clone()
            may_go[max(0, query + 1 - num_recent):] = False
            is_held[scores.masked_fill(~may_go, float("inf")).argmin()] = False
    return is_held.nonzero().flatten().tolist()
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

BANKS = opened_all(
    {
        "5.12": Bank(
            wrong=(
                Wrong("one less than the budget", {2: "len(held) >= budget"}, FITS),
                Wrong("the budget besides the recent ones", {2: "len(held) > budget + num_recent"}, BUDGET),
                Wrong("drops nothing", {2: "False"}, BUDGET),
                Wrong("drops the heaviest", {4: "max(may_go, key=lambda key: scores[key])"}, LIGHTEST),
                Wrong("drops the oldest, a window", {4: "may_go[0]"}, LIGHTEST),
                Wrong("looks at the last query alone", {1: "row[key] - scores[key]"}, ADDS),
                Wrong("counts queries, not their attention", {1: "1.0"}, LIGHTEST),
                Wrong("the newest may go, too", {3: "held"}, WINDOW),
                Wrong("cuts off the last 0, which is all", {3: "held[:-num_recent]"}, BUDGET),
                Wrong("protects one more", {3: "held[: max(1, len(held) - num_recent - 1)]"}, LIGHTEST),
                Wrong("decides once, at the end", AT_THE_END, BACK),
                Wrong("drops the newer of equals", {4: "min(reversed(may_go), key=lambda key: scores[key])"}, NEWEST),
                Wrong("heaviest first", {5: "sorted(held, key=lambda key: -scores[key])"}, FITS),
                Wrong("writes into the weights", IN_PLACE, FITS),
            ),
            right=(
                Right("masks and tensors", TENSORS),
                Right("running sums beforehand", CUMULATED),
                Right("a dict of scores", BY_DICT),
            ),
        ),
    }
)
