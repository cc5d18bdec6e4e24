"""Answers that prove the check of exercise 2.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

RETURNS_NOTHING = """
def naive_attention(q, k, v):
    L, H, D = q.shape
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    hidden = torch.ones(L, L, dtype=torch.bool).triu(1)
    (q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
"""
HIDES_AFTER_THE_SOFTMAX = """
def naive_attention(q, k, v):
    L, H, D = q.shape
    weights = torch.einsum("ihd,jhd->hij", q, k).div(D**0.5).softmax(-1).tril()
    return torch.einsum("hij,jhd->ihd", weights, v).flatten(1)
"""
SCALES_IN_PLACE = """
def naive_attention(q, k, v):
    L, H, D = q.shape
    q /= D**0.5
    scores = torch.einsum("ihd,jhd->hij", q, k)
    scores = scores + torch.full((L, L), -torch.inf).triu(1)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
"""
NO_MASK = """
def naive_attention(q, k, v):
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
"""
HEADS_AS_TOKENS = """
def naive_attention(q, k, v):
    L, H, D = q.shape
    scores = q @ k.mT / D**0.5
    return (scores.softmax(-1) @ v).reshape(L, H * D)
"""
SDPA = """
def naive_attention(q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out[0].transpose(0, 1).flatten(1)
"""
EINSUM = """
def naive_attention(q, k, v):
    L, H, D = q.shape
    scores = torch.einsum("ihd,jhd->hij", q, k) * D**-0.5
    scores = scores + torch.full((L, L), -torch.inf).triu(1)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(L, -1)
"""

BANKS = {
    "2.1": Bank(
        wrong=(
            Wrong("returns nothing", RETURNS_NOTHING, "returns one row per token"),
            Wrong("leaves the heads in front", {4: "heads"}, "returns one row per token"),
            Wrong("softmax over the queries", {3: "scores.softmax(-2)"}, "averages the values"),
            Wrong("softmax over the heads", {3: "scores.softmax(0)"}, "averages the values"),
            Wrong("hides after the softmax", HIDES_AFTER_THE_SOFTMAX, "averages the values"),
            Wrong("not itself", {2: "torch.arange(L) < torch.arange(L)[:, None]"}, "averages the values"),
            Wrong("no mask", NO_MASK, "hides the future"),
            Wrong("the mask transposed", {2: "torch.arange(L)[:, None] <= torch.arange(L)"}, "hides the future"),
            Wrong("one key too late", {2: "torch.arange(L) <= torch.arange(L)[:, None] + 1"}, "hides the future"),
            Wrong("attends among the heads of a token", HEADS_AS_TOKENS, "keeps the heads apart"),
            Wrong("a reshape without a transpose", {4: "heads.reshape(L, H * D)"}, "keeps the heads apart"),
            Wrong(
                "features before heads",
                {4: "heads.permute(1, 2, 0).reshape(L, H * D)"},
                "keeps the heads apart",
            ),
            Wrong("no scale", {1: "q @ k.mT"}, "matches a loop over queries and heads"),
            Wrong("divided by D", {1: "q @ k.mT / D"}, "matches a loop over queries and heads"),
            Wrong("scaled by the length", {1: "q @ k.mT / L**0.5"}, "matches a loop over queries and heads"),
            Wrong("scales its input", SCALES_IN_PLACE, "leaves its inputs alone"),
        ),
        right=(
            Right("torch's own attention", SDPA),
            Right("einsum, softmax by hand", EINSUM),
            Right("a triangle", {2: "torch.ones(L, L, dtype=torch.bool).tril()"}),
            Right("scaled queries", {1: "(q * D**-0.5) @ k.transpose(1, 2)"}),
        ),
    ),
}
