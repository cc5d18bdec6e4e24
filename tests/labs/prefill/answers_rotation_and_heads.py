"""Answers that prove the checks of exercises 2.3 and 2.4."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

NEIGHBOURS = """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
"""
IN_PLACE = """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first = x[..., :half].clone()
    x[..., :half] = first * cos - x[..., half:] * sin
    x[..., half:] = x[..., half:] * cos + first * sin
    return x
"""
POSITION_OF_THE_HEAD = """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** -(torch.arange(half) / half) * positions[:1, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    if x.shape[1] == 1:
        angles = positions[:, None, None] * theta ** -(torch.arange(half) / half)
        cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
"""
COMPLEX = """
def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    angles = torch.outer(positions.double(), theta ** (-torch.arange(half).double() / half))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)
"""
ROTATE_HALF = """
def rotate(x, positions, theta):
    D = x.shape[-1]
    inv_freq = 1.0 / theta ** (torch.arange(0, D, 2).float() / D)
    angles = torch.cat([positions[:, None] * inv_freq] * 2, dim=-1)[:, None]
    swapped = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], dim=-1)
    return x * angles.cos() + swapped * angles.sin()
"""
HEAD_BY_HEAD = """
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
"""
NOT_ROTATED = """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q, k, v = ((x @ w).view(L, -1, D) for w in (layer.w_q, layer.w_k, layer.w_v))
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    return naive_attention(q, k, v) @ layer.w_o
"""
ROTATES_VALUES = """
def layer_attention(x, layer, positions):
    L, D, group = len(x), layer.head_dim, layer.num_heads // layer.num_kv_heads
    q, k, v = (
        rotate((x @ w).view(L, -1, D), positions - positions[0], layer.theta)
        for w in (layer.w_q, layer.w_k, layer.w_v)
    )
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    return naive_attention(q, k, v) @ layer.w_o
"""

BANKS = {
    "2.3": Bank(
        wrong=(
            Wrong("pairs neighbours, as the paper does", NEIGHBOURS, "pairs the two halves"),
            Wrong("frequencies that grow", {1: "theta ** (torch.arange(half) / half)"}, "turns each pair by its angle"),
            Wrong(
                "every other frequency",
                {1: "theta ** -(2 * torch.arange(half) / half)"},
                "turns each pair by its angle",
            ),
            Wrong("all pairs turn alike", {1: "torch.ones(half)"}, "turns each pair by its angle"),
            Wrong(
                "a linear fall instead of a power", {1: "1 - torch.arange(half) / half"}, "turns each pair by its angle"
            ),
            Wrong(
                "counts by itself, whatever the positions",
                {2: "torch.arange(len(positions))[:, None] * frequencies"},
                "leaves position 0 as it is",
            ),
            Wrong(
                "degrees for radians",
                {2: "torch.rad2deg(positions[:, None] * frequencies)"},
                "turns each pair by its angle",
            ),
            Wrong(
                "the other way round",
                {4: "first * cos + second * sin, second * cos - first * sin"},
                "turns each pair by its angle",
            ),
            Wrong("both with a plus", {4: "first * cos + second * sin, second * cos + first * sin"}, "keeps lengths"),
            Wrong(
                "sine and cosine swapped",
                {4: "first * sin - second * cos, second * sin + first * cos"},
                "leaves position 0 as it is",
            ),
            Wrong(
                "halves swapped",
                {4: "second * cos + first * sin, first * cos - second * sin"},
                "leaves position 0 as it is",
            ),
            Wrong("only half of it", {4: "(first * cos - second * sin,)"}, "keeps the shape"),
            Wrong("positions of heads", POSITION_OF_THE_HEAD, "matches multiplication by complex numbers"),
            Wrong("writes into its input", IN_PLACE, "leaves its input alone"),
        ),
        right=(
            Right("complex numbers", COMPLEX),
            Right("the whole vector and its swapped halves", ROTATE_HALF),
            Right("an outer product", {2: "torch.outer(positions.float(), frequencies)"}),
            Right("chunks", {3: "x.chunk(2, dim=-1)"}),
        ),
    ),
    "2.4": Bank(
        wrong=(
            Wrong("forgets the output projection", {4: "naive_attention(q, k, v)"}, "returns a row per token"),
            Wrong(
                "deals the KV heads out in turn",
                {3: "k.repeat(1, group, 1), v.repeat(1, group, 1)"},
                "lets each query head read its KV head",
            ),
            Wrong(
                "repeats the values wrongly",
                {3: "k.repeat_interleave(group, dim=1), v.repeat(1, group, 1)"},
                "lets each query head read its KV head",
            ),
            Wrong(
                "the first KV head for all",
                {3: "k[:, :1].expand(-1, layer.num_heads, -1), v[:, :1].expand(-1, layer.num_heads, -1)"},
                "lets each query head read its KV head",
            ),
            Wrong(
                "rotates the queries only",
                {2: "rotate(q, positions, layer.theta), k"},
                "sees distances, not places",
            ),
            Wrong("rotates the keys only", {2: "q, rotate(k, positions, layer.theta)"}, "sees distances, not places"),
            Wrong(
                "keys one position late, and only some",
                {2: "rotate(q, positions, layer.theta), rotate(k, positions * 2, layer.theta)"},
                "sees distances, not places",
            ),
            Wrong("rotates nothing", NOT_ROTATED, "places tokens at their positions"),
            Wrong("rotates the values too", ROTATES_VALUES, "places tokens at their positions"),
            Wrong(
                "counts from 0 itself",
                {2: "rotate(q, torch.arange(L), layer.theta), rotate(k, torch.arange(L), layer.theta)"},
                "places tokens at their positions",
            ),
            Wrong(
                "the usual theta instead of the layer's",
                {2: "rotate(q, positions, 10_000.0), rotate(k, positions, 10_000.0)"},
                "places tokens at their positions",
            ),
            Wrong(
                "rotates backwards",
                {2: "rotate(q, -positions, layer.theta), rotate(k, positions, layer.theta)"},
                "sees distances, not places",
            ),
            Wrong(
                "values from the key weights",
                {1: "(x @ layer.w_k).view(L, layer.num_kv_heads, D)"},
                "lets each query head read its KV head",
            ),
        ),
        right=(
            Right("a head at a time, nothing repeated", HEAD_BY_HEAD),
            Right(
                "expand and reshape",
                {
                    3: "k[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D), "
                    "v[:, :, None].expand(-1, -1, group, -1).reshape(L, -1, D)"
                },
            ),
            Right(
                "an index of heads",
                {3: "k[:, torch.arange(layer.num_heads) // group], v[:, torch.arange(layer.num_heads) // group]"},
            ),
        ),
    ),
}
