"""Answers that prove the checks of exercise 2.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "2.10": Bank(
        wrong=(
            Wrong(
                "starts marked: an empty last prompt is an IndexError",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    starts = torch.zeros(len(q), dtype=torch.long)
    starts[cu_lens[1:-1].long()] = 1
    owner = starts.cumsum(0)
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    weights = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "at most 64 tokens of history",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    lengths = cu_lens.diff()
    owner = torch.repeat_interleave(lengths.long())
    same = owner[:, None] == owner
    visible = same & (tokens[:, None] >= tokens) & (tokens[:, None] < tokens + 64)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "ignores the scale",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    lengths = cu_lens.diff()
    owner = torch.repeat_interleave(lengths.long())
    same = owner[:, None] == owner
    visible = same & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "-50 for minus infinity",
                {4: "scores.masked_fill(~visible, -50.0).softmax(-1)"},
                "works at any level of scores",
            ),
            Wrong(
                "exp without the maximum",
                {4: "(e := scores.masked_fill(~visible, -torch.inf).exp()) / e.sum(-1, keepdim=True)"},
                "works at any level of scores",
            ),
            Wrong("ends for lengths", {1: "cu_lens[1:]"}, "returns a vector per token and head"),
            Wrong("the first start counted as a prompt", {1: "cu_lens"}, "returns a vector per token and head"),
            Wrong("everybody together", {2: "torch.ones(len(q), len(q), dtype=torch.bool)"}, "keeps prompts apart"),
            Wrong("only other prompts", {2: "owner[:, None] != owner"}, "averages the values"),
            Wrong("earlier prompts too", {2: "owner[:, None] >= owner"}, "keeps prompts apart"),
            Wrong("causal only", {3: "tokens[:, None] >= tokens"}, "keeps prompts apart"),
            Wrong("no causal mask", {3: "same"}, "hides the future"),
            Wrong("looks ahead", {3: "same & (tokens[:, None] <= tokens)"}, "hides the future"),
            Wrong("not itself", {3: "same & (tokens[:, None] > tokens)"}, "averages the values"),
            Wrong(
                "softmax over the queries",
                {4: "scores.masked_fill(~visible, -torch.inf).softmax(-2)"},
                "averages the values",
            ),
            Wrong("hidden after the softmax", {4: "scores.softmax(-1) * visible"}, "averages the values"),
            Wrong(
                "zero instead of minus infinity",
                {4: "scores.masked_fill(~visible, 0).softmax(-1)"},
                "keeps prompts apart",
            ),
            Wrong(
                "reads KV head h % H_kv",
                """
def packed_attention(q, k, v, cu_lens, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, group, 1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "no scale",
                """
def packed_attention(q, k, v, cu_lens, scale):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
""",
                "matches each prompt alone",
            ),
            Wrong(
                "scales its input",
                """
def packed_attention(q, k, v, cu_lens, scale):
    q *= scale
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
""",
                "leaves its inputs alone",
            ),
        ),
        right=(
            Right(
                "torch's attention per prompt",
                """
def packed_attention(q, k, v, cu_lens, scale):
    out = torch.empty_like(q)
    for first, end in zip(cu_lens[:-1].tolist(), cu_lens[1:].tolist()):
        part = (x[first:end].transpose(0, 1) for x in (q, k, v))
        out[first:end] = torch.nn.functional.scaled_dot_product_attention(
            *part, is_causal=True, scale=scale, enable_gqa=True
        ).transpose(0, 1)
    return out
""",
            ),
            Right(
                "owners by search, heads in groups",
                """
def packed_attention(q, k, v, cu_lens, scale):
    T, H, D = q.shape
    grouped = q.view(T, k.shape[1], -1, D)
    tokens = torch.arange(T)
    owner = torch.searchsorted(cu_lens[1:].long(), tokens, right=True)
    hidden = (owner[:, None] != owner) | (tokens[:, None] < tokens)
    scores = torch.einsum("qkgd,skd->kgqs", grouped, k) * scale
    weights = (scores + torch.zeros(T, T).masked_fill(hidden, -torch.inf)).softmax(-1)
    return torch.einsum("kgqs,skd->qkgd", weights, v).reshape(T, H, D)
""",
            ),
            Right("differences of neighbours", {1: "cu_lens[1:] - cu_lens[:-1]"}),
            Right(
                "a row at a time in NumPy",
                """
def packed_attention(q, k, v, cu_lens, scale):
    import numpy as np
    Q, K, V, cu = q.numpy(), k.numpy(), v.numpy(), cu_lens.numpy()
    G = Q.shape[1] // K.shape[1]
    out = np.zeros_like(Q)
    for t in range(len(Q)):
        a = int(cu[np.searchsorted(cu, t, side="right") - 1])
        for h in range(Q.shape[1]):
            s = K[a : t + 1, h // G] @ Q[t, h] * scale
            w = np.exp(s - s.max())
            out[t, h] = w @ V[a : t + 1, h // G] / w.sum()
    return torch.from_numpy(out)
""",
            ),
        ),
    ),
}
