"""Answers that prove the checks of exercises 7.8 and 7.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BEST, DTYPE, SEVERAL, ONCE, ALONE = (
    "sends each token to its best expert",
    "returns x's dtype",
    "adds up k experts with their weights",
    "calls an expert once, with all of its rows",
    "calls no expert that no token chose",
)
PARTS, COUNTS, SENDS, HOME, WEIGHS = (
    "has a part for each rank",
    "counts the rows of each expert",
    "sends rows to the rank of their expert",
    "brings every row back to its token",
    "adds up a token's experts, each with its weight",
)
RIGHT = """
def mixture(x, router, experts, k):
    logits, chosen = (x @ router.T).topk(k, dim=-1)
    weights = logits.softmax(-1)
    out = torch.zeros_like(x)
    for e in chosen.unique().tolist():
        tokens, choice = (chosen == e).nonzero(as_tuple=True)
        out[tokens] += weights[tokens, choice, None] * experts[e](x[tokens])
    return out
"""


def edited(old: str, new: str) -> str:
    assert old in RIGHT, old
    return RIGHT.replace(old, new)


TOKEN_BY_TOKEN = """
def mixture(x, router, experts, k):
    out = torch.zeros_like(x)
    for t in range(len(x)):
        logits, chosen = (router @ x[t]).topk(k)
        for weight, e in zip(logits.softmax(0), chosen.tolist()):
            out[t] += weight * experts[e](x[t : t + 1])[0]
    return out
"""
ALL_EXPERTS = """
def mixture(x, router, experts, k):
    logits, chosen = (x @ router.T).topk(k, dim=-1)
    weights = torch.zeros(len(x), len(experts), dtype=x.dtype).scatter(1, chosen, logits.softmax(-1))
    return sum(weights[:, e, None] * experts[e](x) for e in range(len(experts)))
"""
EMPTY_CALLS = """
def mixture(x, router, experts, k):
    logits, chosen = (x @ router.T).topk(k, dim=-1)
    weights = logits.softmax(-1)
    out = torch.zeros_like(x)
    for e in range(len(experts)):
        tokens, choice = (chosen == e).nonzero(as_tuple=True)
        out[tokens] += weights[tokens, choice, None] * experts[e](x[tokens])
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
DENSE_WEIGHTS = """
def mixture(x, router, experts, k):
    logits = x @ router.T
    out = torch.zeros_like(x)
    if not len(x):
        return out
    kept = torch.full_like(logits, -torch.inf)
    top = logits.topk(k, dim=-1).indices
    kept.scatter_(1, top, logits.gather(1, top))
    weights = kept.softmax(-1)
    for e, expert in enumerate(experts):
        mine = weights[:, e] > 0
        if mine.any():
            out[mine] = out[mine] + weights[mine, e].unsqueeze(1) * expert(x[mine])
    return out
"""
BY_LISTS = """
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

OLD_ORDER = """
def dispatch(x, experts, num_experts, n):
    k, per_rank = experts.shape[1], num_experts // n
    entries = [(int(e), t, c) for t, row in enumerate(experts) for c, e in enumerate(row)]
    entries.sort(key=lambda entry: entry[0])
    rows = [[x[t] for e, t, _ in entries if e // per_rank == rank] for rank in range(n)]
    empty = x.new_zeros(0, x.shape[1])
    counts = torch.zeros(num_experts, dtype=torch.int64)
    for e, _, _ in entries:
        counts[e] += 1
    return [torch.stack(r) if r else empty for r in rows], counts.view(n, per_rank), [(t, c) for _, t, c in entries]


def combine(returned, order, weights):
    rows = torch.cat(list(returned))
    out = rows.new_zeros(len(weights), rows.shape[1])
    for (t, c), row in zip(order, rows):
        out[t] += weights[t, c] * row
    return out
"""
WITH_NUMPY = """
import numpy as np


def dispatch(x, experts, num_experts, n):
    flat = experts.numpy().ravel()
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=num_experts).reshape(n, -1)
    rows = x[torch.from_numpy(order // experts.shape[1])]
    ends = np.cumsum(counts.sum(1))
    return [rows[a:b] for a, b in zip([0, *ends[:-1]], ends)], counts, order


def combine(returned, order, weights):
    rows = torch.cat(list(returned))
    back = torch.zeros_like(rows)
    back[torch.as_tensor(order)] = rows
    return torch.einsum("tkn,tk->tn", back.view(*weights.shape, rows.shape[1]), weights)
"""

BANKS = {
    "7.8": Bank(
        wrong=(
            Wrong(
                "the weights of all experts",
                edited("logits.softmax(-1)", "(x @ router.T).softmax(-1).gather(1, chosen)"),
                BEST,
            ),
            Wrong("equal weights", edited("logits.softmax(-1)", "torch.full_like(logits, 1 / k)"), SEVERAL),
            Wrong("weights by logits", edited("logits.softmax(-1)", "logits / logits.sum(-1, keepdim=True)"), SEVERAL),
            Wrong("the worst experts", edited("topk(k, dim=-1)", "topk(k, dim=-1, largest=False)"), BEST),
            Wrong(
                "the weight of the first choice for all",
                edited("weights[tokens, choice, None]", "weights[tokens, 0, None]"),
                SEVERAL,
            ),
            Wrong("softmax over tokens", edited("softmax(-1)", "softmax(0)"), BEST),
            Wrong("the last expert wins", edited("out[tokens] += ", "out[tokens] = "), SEVERAL),
            Wrong(
                "the weights twice",
                edited("weights[tokens, choice, None] *", "weights[tokens, choice, None] ** 2 *"),
                SEVERAL,
            ),
            Wrong("token by token", TOKEN_BY_TOKEN, ONCE),
            Wrong("every expert for every token", ALL_EXPERTS, ONCE),
            Wrong("calls without rows", EMPTY_CALLS, ALONE),
            Wrong(
                "64 experts at most",
                edited("chosen.unique().tolist():", "[e for e in chosen.unique().tolist() if e < 64]:"),
                SEVERAL,
            ),
            Wrong(
                "16 rows at most for an expert",
                edited("        out[tokens]", "        tokens, choice = tokens[:16], choice[:16]\n        out[tokens]"),
                SEVERAL,
            ),
            Wrong(
                "weights remembered by size",
                "kept = {}\n" + edited("logits.softmax(-1)", "kept.setdefault((*x.shape, k), logits.softmax(-1))"),
                SEVERAL,
            ),
            Wrong("always float32", edited("torch.zeros_like(x)", "torch.zeros(x.shape)"), DTYPE),
            Wrong("adds x", edited("torch.zeros_like(x)", "x.clone()"), BEST),
            Wrong("writes into x", edited("torch.zeros_like(x)", "x.mul_(0)"), BEST),
        ),
        right=(
            Right("sorted by expert", SORTED),
            Right("a dense row of weights", DENSE_WEIGHTS),
            Right("lists and math.exp", BY_LISTS),
        ),
    ),
    "7.10": Bank(
        wrong=(
            Wrong("not sorted", {1: "torch.arange(len(flat))"}, SENDS),
            Wrong("sorted the other way", {1: "flat.argsort(descending=True, stable=True)"}, SENDS),
            Wrong("entries for tokens", {2: "x[order % len(x)] if len(x) else x"}, SENDS),
            Wrong("choices for tokens", {2: "x[(order % experts.shape[1]).clamp(max=max(len(x) - 1, 0))]"}, SENDS),
            Wrong(
                "a row for each expert at most",
                {3: "torch.bincount(flat, minlength=num_experts).clamp(max=1)"},
                PARTS,
            ),
            Wrong(
                "counts by rank in turn",
                {3: "torch.bincount(flat, minlength=num_experts).view(-1, n).T.flatten()"},
                COUNTS,
            ),
            Wrong("as many rows for each rank", {4: "rows.tensor_split(n)"}, SENDS),
            Wrong("chunks", {4: "rows.chunk(n)"}, PARTS),
            Wrong(
                "no part for a rank without rows",
                {4: "[p for p in rows.split(counts.sum(1).tolist()) if len(p)]"},
                PARTS,
            ),
            Wrong("rows stay sorted", {5: "rows[:] = sorted_rows"}, HOME),
            Wrong("sorted once more", {5: "rows[:] = sorted_rows[order]"}, HOME),
            Wrong(
                "an order remembered by its length",
                {5: "rows[globals().setdefault('orders', {}).setdefault(len(order), order)] = sorted_rows"},
                HOME,
            ),
            Wrong("no weights", {6: "rows.sum(1)"}, HOME),
            Wrong(
                "the mean of the weights",
                {6: "rows.sum(1) * weights.mean(1, keepdim=True)"},
                WEIGHS,
            ),
            Wrong(
                "the weights in sorted order",
                {6: "(rows * weights.flatten()[order].view(*weights.shape, 1)).sum(1)"},
                HOME,
            ),
        ),
        right=(
            Right("with lists of pairs", OLD_ORDER),
            Right("with numpy", WITH_NUMPY),
            Right("an unstable order", {1: "flat.argsort()"}),
            Right("the other way within an expert", {1: "len(flat) - 1 - flat.flip(0).argsort(stable=True)"}),
            Right("undone by sorting the order", {5: "rows.copy_(sorted_rows[order.argsort()])"}),
            Right("einsum", {6: "torch.einsum('tkn,tk->tn', rows, weights)"}),
        ),
    ),
}
