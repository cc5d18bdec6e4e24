"""Answers that prove the checks of exercises 7.6 and 7.8."""

from twophase_labs.machine.bank import right, wrong

BEST, DTYPE = "sends each token to its best expert", "returns x's dtype"
SEVERAL, ONCE = "adds up k experts with their weights", "calls an expert once, with all of its rows"
ALONE, PARTS = "calls no expert that no token chose", "has a part for each rank"
COUNTS, SENDS = "counts the rows of each expert", "sends rows to the rank of their expert"
HOME, WEIGHS = "brings every row back to its token", "adds up a token's experts, each with its weight"

BY_LISTS = """
import math


def mixture(x, router, experts, k):
    rows_of, out = {}, torch.zeros_like(x)
    for t, row in enumerate((x @ router.T).tolist()):
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k]
        scale = sum(math.exp(row[e] - row[best[0]]) for e in best)
        for e in best:
            rows_of.setdefault(e, []).append((t, math.exp(row[e] - row[best[0]]) / scale))
    for e, pairs in rows_of.items():
        for (t, weight), y in zip(pairs, experts[e](x[[t for t, _ in pairs]])):
            out[t] += weight * y
    return out
"""
SORTED = """
def mixture(x, router, experts, k):
    probabilities, chosen = (x @ router.T).softmax(-1).topk(k, dim=-1)
    weights = probabilities / probabilities.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    rows = torch.empty(len(order), x.shape[1], dtype=x.dtype)
    counts = torch.bincount(chosen.flatten(), minlength=len(experts)).tolist()
    start = 0
    for e, count in enumerate(counts):
        if count:
            part = order[start : start + count]
            rows[part] = experts[e](x[part // k])
        start += count
    return (rows.view(len(x), k, x.shape[1]) * weights[..., None]).sum(1)
"""

# fmt: off
BANKS = {
    "7.6": (
        wrong("adds x", "torch.zeros_like(x", "x.clone(", by=BEST),
        wrong("softmax over tokens", "logits.softmax(-1)", "logits.softmax(0)", by=BEST),
        wrong("always float32", ".zeros_like(x", ".zeros(x.shape", by=DTYPE),
        wrong("the last expert wins", "[tokens] +=", "[tokens] =", by=SEVERAL),
        wrong("the weight of the first choice for all", "tokens, choice, None", "tokens, 0, None", by=SEVERAL),
        wrong("weights by logits", ".softmax(-1", " / logits.sum(-1, keepdim=True", by=SEVERAL),
        wrong("every expert for every token",
              {1: "logits, chosen = (x @ router.T).topk(k, dim=-1)\nweights = torch.zeros(len(x), len(experts), dtype=x.dtype).scatter(1, chosen, logits.softmax(-1))\nreturn sum((weights[:, e, None] * experts[e](x) for e in range(len(experts))))"},
              by=ONCE),
        wrong("calls without rows", "chosen.unique().tolist(", "range(len(experts)", by=ALONE),
        right("lists and math.exp", BY_LISTS),
        right("sorted by expert", SORTED),
    ),
    "7.8": (
        wrong("chunks", {4: "rows.chunk(n)"}, by=PARTS),
        wrong("a row for each expert at most", {3: "torch.bincount(flat, minlength=num_experts).clamp(max=1)"},
              by=PARTS),
        wrong("counts by rank in turn", {3: "torch.bincount(flat, minlength=num_experts).view(-1, n).T.flatten()"},
              by=COUNTS),
        wrong("as many rows for each rank", {4: "rows.tensor_split(n)"}, by=SENDS),
        wrong("not sorted", {1: "torch.arange(len(flat))"}, by=SENDS),
        wrong("no weights", {6: "rows.sum(1)"}, by=HOME),
        wrong("rows stay sorted", {5: "rows[:] = sorted_rows"}, by=HOME),
        wrong("the mean of the weights", {6: "rows.sum(1) * weights.mean(1, keepdim=True)"}, by=WEIGHS),
        right("the other way within an expert", {1: "len(flat) - 1 - flat.flip(0).argsort(stable=True)"}),
        right("undone by sorting the order", {5: "rows.copy_(sorted_rows[order.argsort()])"}),
    ),
}
