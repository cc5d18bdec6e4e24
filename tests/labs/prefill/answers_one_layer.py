"""Answers that prove the checks of exercise 2.1."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_1 = """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q, k, v) @ layer.w_o
"""

BANKS = {
    "2.1": Bank(
        wrong=(
            Wrong(
                "always the base of the check",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, positions, 100.0), rotate(k, positions, 100.0)",
                    ),
                ),
                "places tokens at their positions",
            ),
            Wrong(
                "always eight numbers a head",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q * (D / 8) ** 0.5, k, v) @ layer.w_o
""",
                "places tokens at their positions",
            ),
            Wrong(
                "forgets the output projection",
                edited(SOLVED_2_1, ("return naive_attention(q, k, v) @ layer.w_o", "return naive_attention(q, k, v)")),
                "returns a row per token",
            ),
            Wrong(
                "deals the KV heads out in turn",
                edited(
                    SOLVED_2_1,
                    (
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
                        "k, v = k.repeat(1, group, 1), v.repeat(1, group, 1)",
                    ),
                ),
                "lets each query head read its KV head",
            ),
            Wrong(
                "repeats the values wrongly",
                edited(
                    SOLVED_2_1,
                    (
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat(1, group, 1)",
                    ),
                ),
                "lets each query head read its KV head",
            ),
            Wrong(
                "the first KV head for all",
                edited(
                    SOLVED_2_1,
                    (
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
                        "k, v = k[:, :1].expand(-1, layer.num_heads, -1), v[:, :1].expand(-1, layer.num_heads, -1)",
                    ),
                ),
                "lets each query head read its KV head",
            ),
            Wrong(
                "rotates the queries only",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, positions, layer.theta), k",
                    ),
                ),
                "sees distances, not places",
            ),
            Wrong(
                "rotates the keys only",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = q, rotate(k, positions, layer.theta)",
                    ),
                ),
                "sees distances, not places",
            ),
            Wrong(
                "keys one position late, and only some",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions * 2, layer.theta)",
                    ),
                ),
                "sees distances, not places",
            ),
            Wrong(
                "rotates nothing",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q, k, v = ((x @ w).view(L, -1, D) for w in (layer.w_q, layer.w_k, layer.w_v))
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    return naive_attention(q, k, v) @ layer.w_o
""",
                "places tokens at their positions",
            ),
            Wrong(
                "rotates the values too",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q, k, v = (
        rotate((x @ w).view(L, -1, D), positions - positions[0], layer.theta)
        for w in (layer.w_q, layer.w_k, layer.w_v)
    )
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    return naive_attention(q, k, v) @ layer.w_o
""",
                "places tokens at their positions",
            ),
            Wrong(
                "counts from 0 itself",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, torch.arange(L), layer.theta), rotate(k, torch.arange(L), layer.theta)",
                    ),
                ),
                "places tokens at their positions",
            ),
            Wrong(
                "the usual theta instead of the layer's",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, positions, 10_000.0), rotate(k, positions, 10_000.0)",
                    ),
                ),
                "places tokens at their positions",
            ),
            Wrong(
                "rotates backwards",
                edited(
                    SOLVED_2_1,
                    (
                        "q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)",
                        "q, k = rotate(q, -positions, layer.theta), rotate(k, positions, layer.theta)",
                    ),
                ),
                "sees distances, not places",
            ),
            Wrong(
                "values from the key weights",
                edited(
                    SOLVED_2_1,
                    (
                        "v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)",
                        "v = (x @ layer.w_k).view(L, layer.num_kv_heads, D)",
                    ),
                ),
                "lets each query head read its KV head",
            ),
            Wrong(
                "positions made relative in place",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    positions -= positions[0].clone()
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q, k, v) @ layer.w_o
""",
                "leaves its inputs alone",
            ),
            Wrong(
                "positions up to 2,047 only",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = (x @ layer.w_q).view(L, layer.num_heads, D)
    k = (x @ layer.w_k).view(L, layer.num_kv_heads, D)
    v = (x @ layer.w_v).view(L, layer.num_kv_heads, D)
    positions = positions.clamp(max=2047)
    q, k = rotate(q, positions, layer.theta), rotate(k, positions, layer.theta)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return naive_attention(q, k, v) @ layer.w_o
""",
                "sees distances, not places",
            ),
        ),
        right=(
            Right(
                "a head at a time, nothing repeated",
                """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q = rotate((x @ layer.w_q).view(L, -1, D), positions, layer.theta)
    k = rotate((x @ layer.w_k).view(L, -1, D), positions, layer.theta)
    v = (x @ layer.w_v).view(L, -1, D)
    heads = []
    for head in range(layer.num_heads):
        kv = head // group
        heads.append(naive_attention(q[:, head : head + 1], k[:, kv : kv + 1], v[:, kv : kv + 1]))
    return torch.cat(heads, dim=-1) @ layer.w_o
""",
            ),
            Right(
                "expand and reshape",
                edited(
                    SOLVED_2_1,
                    (
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
                        "k, v = k[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D), v[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D)",
                    ),
                ),
            ),
            Right(
                "an index of heads",
                edited(
                    SOLVED_2_1,
                    (
                        "k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
                        "k, v = k[:, torch.arange(layer.num_heads) // group], v[:, torch.arange(layer.num_heads) // group]",
                    ),
                ),
            ),
            Right(
                "torch's own attention",
                """
def layer_attention(x, layer, positions):
    H, K, D = layer.num_heads, layer.num_kv_heads, layer.head_dim
    q = rotate((x @ layer.w_q).unflatten(-1, (H, D)), positions, layer.theta)
    k = rotate((x @ layer.w_k).unflatten(-1, (K, D)), positions, layer.theta)
    v = (x @ layer.w_v).unflatten(-1, (K, D))
    o = F.scaled_dot_product_attention(*(y.transpose(0, 1)[None] for y in (q, k, v)), is_causal=True, enable_gqa=True)
    return o[0].transpose(0, 1).flatten(1) @ layer.w_o
""",
            ),
            Right(
                "a row at a time in NumPy",
                """
def layer_attention(x, layer, positions):
    import numpy as np
    X = x.numpy().astype(np.float64)
    wq, wk, wv, wo = (np.asarray(w, dtype=np.float64) for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o))
    L, H, K, D = len(X), layer.num_heads, layer.num_kv_heads, layer.head_dim
    def turn(y, heads):
        y = y.reshape(L, heads, D)
        z = y[..., : D // 2] + 1j * y[..., D // 2 :]
        z = z * np.exp(1j * positions.numpy()[:, None] * layer.theta ** (-np.arange(D // 2) / (D // 2)))[:, None]
        return np.concatenate([z.real, z.imag], -1)
    q, k, v = turn(X @ wq, H), turn(X @ wk, K), (X @ wv).reshape(L, K, D)
    out = np.zeros((L, H, D))
    for t in range(L):
        for h in range(H):
            g = h // (H // K)
            s = k[: t + 1, g] @ q[t, h] / D ** 0.5
            w = np.exp(s - s.max())
            out[t, h] = w @ v[: t + 1, g] / w.sum()
    return torch.tensor(out.reshape(L, H * D) @ wo, dtype=x.dtype)
""",
            ),
        ),
    ),
}
