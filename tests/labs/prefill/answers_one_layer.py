"""Answers that prove the check of exercise 2.1."""

from twophase_labs.machine.bank import right, wrong

RETURNS_A, LETS_EACH = "returns a row per token", "lets each query head read its KV head"
SEES_DISTANCES, PLACES_TOKENS = "sees distances, not places", "places tokens at their positions"
LEAVES_ITS = "leaves its inputs alone"

TORCH_S_OWN_ATTENTION = """
def layer_attention(x, layer, positions):
    H, K, D = layer.num_heads, layer.num_kv_heads, layer.head_dim
    q = rotate((x @ layer.w_q).unflatten(-1, (H, D)), positions, layer.theta)
    k = rotate((x @ layer.w_k).unflatten(-1, (K, D)), positions, layer.theta)
    v = (x @ layer.w_v).unflatten(-1, (K, D))
    o = F.scaled_dot_product_attention(*(y.transpose(0, 1)[None] for y in (q, k, v)), is_causal=True, enable_gqa=True)
    return o[0].transpose(0, 1).flatten(1) @ layer.w_o
"""

# fmt: off
BANKS = {
    "2.1": (
        wrong("forgets the output projection", "(q, k, v) @ layer.w_o", "(q, k, v)", by=RETURNS_A),
        wrong("values from the key weights", "layer.w_v", "layer.w_k", by=LETS_EACH),
        wrong("repeats the values wrongly", "v.repeat_interleave(group, dim=1)", "v.repeat(1, group, 1)", by=LETS_EACH),
        wrong("rotates the queries only", "rotate(k, positions, layer.theta)", "k", by=SEES_DISTANCES),
        wrong("rotates the keys only", "rotate(q, positions, layer.theta)", "q", by=SEES_DISTANCES),
        wrong("always eight numbers a head", "naive_attention(q, k, v)", "naive_attention(q * (D / 8) ** 0.5, k, v)",
              by=PLACES_TOKENS),
        wrong("always the base of the check", "rotate(q, positions, layer.theta)", "rotate(q, positions, 100.0)",
              "rotate(k, positions, layer.theta)", "rotate(k, positions, 100.0)", by=PLACES_TOKENS),
        wrong("positions made relative in place", "q, k =", "positions -= positions[0].clone()\n    q, k =",
              by=LEAVES_ITS),
        right("torch's own attention", TORCH_S_OWN_ATTENTION),
        right("expand and reshape", "k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1",
              "(k[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D), v[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D)"),
    ),
}
