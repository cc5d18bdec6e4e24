"""Answers that prove the check of exercise 2.10."""

from twophase_labs.machine.bank import right, wrong

RETURNS_A, AVERAGES_THE = "returns a vector per token and head", "averages the values"
KEEPS_PROMPTS, HIDES_THE, MATCHES_EACH = "keeps prompts apart", "hides the future", "matches each prompt alone"
WORKS_AT, LEAVES_ITS = "works at any level of scores", "leaves its inputs alone"

SCALES_ITS_INPUT = """
def packed_attention(q, k, v, cu_lens, scale):
    q *= scale
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    tokens = torch.arange(len(q))
    owner = torch.repeat_interleave(cu_lens.diff().long())
    visible = (owner[:, None] == owner) & (tokens[:, None] >= tokens)
    scores = torch.einsum("qhd,khd->hqk", q, k)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)
"""
TORCH_S_ATTENTION_PER = """
def packed_attention(q, k, v, cu_lens, scale):
    out = torch.empty_like(q)
    for first, end in zip(cu_lens[:-1].tolist(), cu_lens[1:].tolist()):
        part = (x[first:end].transpose(0, 1) for x in (q, k, v))
        out[first:end] = torch.nn.functional.scaled_dot_product_attention(
            *part, is_causal=True, scale=scale, enable_gqa=True
        ).transpose(0, 1)
    return out
"""
A_ROW_AT_A = """
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
"""

# fmt: off
BANKS = {
    "2.10": (
        wrong("the first start counted as a prompt", {1: "cu_lens"}, by=RETURNS_A),
        wrong("ends for lengths", {1: "cu_lens[1:]"}, by=RETURNS_A),
        wrong("hidden after the softmax", {4: "scores.softmax(-1) * visible"}, by=AVERAGES_THE),
        wrong("zero instead of minus infinity", "-torch.inf", "0", by=KEEPS_PROMPTS),
        wrong("no causal mask", {3: "same"}, by=HIDES_THE),
        wrong("at most 64 tokens of history", "(tokens[:, None] >= tokens",
              "(tokens[:, None] >= tokens) & (tokens[:, None] < tokens + 64", by=MATCHES_EACH),
        wrong("-50 for minus infinity", "torch.inf", "50.0", by=WORKS_AT),
        wrong("scales its input", SCALES_ITS_INPUT, by=LEAVES_ITS),
        right("torch's attention per prompt", TORCH_S_ATTENTION_PER),
        right("a row at a time in NumPy", A_ROW_AT_A),
    ),
}
