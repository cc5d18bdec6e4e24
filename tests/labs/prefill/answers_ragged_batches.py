"""Answers that prove the check of exercise 2.17."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SDPA_PER_PROMPT = """
def packed_attention(q, k, v, cu_lens, scale):
    out = torch.empty_like(q)
    for first, end in zip(cu_lens[:-1].tolist(), cu_lens[1:].tolist()):
        part = (x[first:end].transpose(0, 1) for x in (q, k, v))
        out[first:end] = torch.nn.functional.scaled_dot_product_attention(
            *part, is_causal=True, scale=scale, enable_gqa=True
        ).transpose(0, 1)
    return out
"""
SEARCHED = """
def packed_attention(q, k, v, cu_lens, scale):
    T, H, D = q.shape
    grouped = q.view(T, k.shape[1], -1, D)
    tokens = torch.arange(T)
    owner = torch.searchsorted(cu_lens[1:].long(), tokens, right=True)
    hidden = (owner[:, None] != owner) | (tokens[:, None] < tokens)
    scores = torch.einsum("qkgd,skd->kgqs", grouped, k) * scale
    weights = (scores + torch.zeros(T, T).masked_fill(hidden, -torch.inf)).softmax(-1)
    return torch.einsum("kgqs,skd->qkgd", weights, v).reshape(T, H, D)
"""
HEADS_IN_TURN = """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, group, 1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
"""
NO_SCALE = """
def packed_attention(q, k, v, cu_lens, scale):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
"""
SCALES_IN_PLACE = """
def packed_attention(q, k, v, cu_lens, scale):
    q *= scale
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
"""
SHAPE = "returns a vector per token and head"
APART = "keeps prompts apart"

BANKS = {
    "2.17": Bank(
        wrong=(
            Wrong("ends for lengths", {1: "cu_lens[1:]"}, SHAPE),
            Wrong("the first start counted as a prompt", {1: "cu_lens"}, SHAPE),
            Wrong("everybody together", {2: "torch.ones(len(q), len(q), dtype=torch.bool)"}, APART),
            Wrong("only other prompts", {2: "owner[:, None] != owner"}, "averages the values"),
            Wrong("earlier prompts too", {2: "owner[:, None] >= owner"}, APART),
            Wrong("causal only", {3: "tokens[:, None] >= tokens"}, APART),
            Wrong("no causal mask", {3: "same"}, "hides the future"),
            Wrong("looks ahead", {3: "same & (tokens[:, None] <= tokens)"}, "hides the future"),
            Wrong("not itself", {3: "same & (tokens[:, None] > tokens)"}, "averages the values"),
            Wrong(
                "softmax over the queries",
                {4: "scores.masked_fill(~visible, -torch.inf).softmax(-2)"},
                "averages the values",
            ),
            Wrong("hidden after the softmax", {4: "scores.softmax(-1) * visible"}, "averages the values"),
            Wrong("zero instead of minus infinity", {4: "scores.masked_fill(~visible, 0).softmax(-1)"}, APART),
            Wrong("reads KV head h % H_kv", HEADS_IN_TURN, "matches each prompt alone"),
            Wrong("no scale", NO_SCALE, "matches each prompt alone"),
            Wrong("scales its input", SCALES_IN_PLACE, "leaves its inputs alone"),
        ),
        right=(
            Right("torch's attention per prompt", SDPA_PER_PROMPT),
            Right("owners by search, heads in groups", SEARCHED),
            Right("differences of neighbours", {1: "cu_lens[1:] - cu_lens[:-1]"}),
        ),
    ),
}
