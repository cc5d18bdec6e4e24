"""2.2 Positions by rotation, and heads that share keys: one real layer."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.prefill.exercises.plain_attention import loop_attention
from twophase_labs.prefill.real_layer import Layer, layer_of

AXES = ("token", "head", "feature")
THETA = 100.0  # small, so that every pair turns visibly within a few positions
THETAS = (THETA, 37.0, 10_000.0)


def turned(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Each pair (i, i + D/2) as a complex number, turned by its angle, in float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    out = torch.zeros(*x.shape, dtype=torch.float64)
    for token, position in enumerate(positions.tolist()):
        for i in range(half):
            angle = position * theta ** (-2 * i / (2 * half))
            pair = pairs[token, :, i] * complex(math.cos(angle), math.sin(angle))
            out[token, :, i], out[token, :, half + i] = pair.real, pair.imag
    return out.float()


def rotated(answer: Any, x: Tensor, positions: Tensor, theta: float = THETA) -> Tensor:
    got = answer.rotate(x, positions, theta)
    if not isinstance(got, Tensor) or got.shape != x.shape:
        shape = list(got.shape) if isinstance(got, Tensor) else repr(got)
        reject(f"the result is {shape}, expected a tensor of the shape of x, {list(x.shape)}")
    return got


def keeps_the_shape(answer: Any, draw: Draw, length: int, num_heads: int, width: int) -> None:
    rotated(answer, draw.normal(length, num_heads, width), torch.arange(length))


def leaves_position_0(answer: Any, draw: Draw, length: int, num_heads: int, width: int) -> None:
    x = draw.normal(length, num_heads, width)
    got = rotated(answer, x, torch.zeros(length, dtype=torch.long))
    compare(got, x, what="a vector at position 0", axes=AXES)


def pairs_the_halves(answer: Any, draw: Draw, width: int) -> None:
    """A vector with one number that is not 0: after the rotation only it and its partner may differ from 0."""
    half = width // 2
    for i in range(half):
        x = torch.zeros(1, 1, width)
        x[0, 0, i] = 1
        got = rotated(answer, x, torch.tensor([1]))[0, 0]
        reached = got.abs().gt(1e-6).nonzero()[:, 0].tolist()
        if not set(reached) <= {i, i + half}:
            reject(
                f"number {i} of {width} is mixed with number {next(j for j in reached if j not in (i, i + half))}",
                f"its partner is number {i + half}: pairs are i and i + D/2",
            )


def keeps_lengths(answer: Any, draw: Draw, length: int, num_heads: int, width: int) -> None:
    x = draw.normal(length, num_heads, width)
    expected = x.norm(dim=-1)
    got = rotated(answer, x, draw.integers(0, 40, length))
    compare(got.norm(dim=-1), expected, what="the length of a vector", axes=("token", "head"))


def turns_by_the_angle(answer: Any, draw: Draw, width: int) -> None:
    """One token, one head, one pair at a time."""
    position = draw.integer(1, 6)
    for i, theta in ((i, theta) for theta in THETAS for i in range(width // 2)):
        x = torch.zeros(1, 1, width)
        x[0, 0, i] = 1
        got = rotated(answer, x, torch.tensor([position]), theta)[0, 0]
        angle = math.atan2(float(got[i + width // 2]), float(got[i]))
        expected = position * theta ** (-2 * i / width)
        if abs(math.remainder(angle - expected, 2 * math.pi)) > 1e-4:
            reject(
                f"pair {i} of {width // 2} at position {position} is turned by {angle:.4f} radians, "
                f"expected {math.remainder(expected, 2 * math.pi):.4f}",
                f"{position} * {theta:g} ** (-2 * {i} / {width}) = {expected:.4f}"
                + (", less whole turns" if expected > math.pi else ""),
            )


def matches_complex_numbers(answer: Any, draw: Draw, length: int, num_heads: int, width: int, first: int = 0) -> None:
    """Positions from `first` on, in no order. Far from 0 an angle in float32 is off by 6e-8 of the position."""
    x = draw.normal(length, num_heads, width)
    positions = draw.integers(first, first + 50, length)
    for theta in THETAS:
        expected = turned(x, positions, theta)  # first: the answer might modify its input
        got = rotated(answer, x, positions, theta)
        compare(got, expected, what="the rotated vector", axes=AXES, atol=1e-5 + 1e-6 * first)


def leaves_its_input_alone(answer: Any, draw: Draw) -> None:
    x = draw.normal(3, 2, 8)
    with unchanged(x=x):
        answer.rotate(x, torch.arange(3), THETA)


# -- 2.4


def random_layer(draw: Draw, num_heads: int, num_kv_heads: int, width: int = 8, hidden: int = 24) -> Layer:
    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return gain * draw.normal(rows, columns) / rows**0.5

    kv = num_kv_heads * width
    return Layer(
        matrix(hidden, num_heads * width, gain=3),
        matrix(hidden, kv),
        matrix(hidden, kv),
        matrix(num_heads * width, hidden),
        num_heads,
        num_kv_heads,
        width,
        draw.choice(THETAS[:2]),
    )


def plain_layer(x: Tensor, layer: Layer, positions: Tensor) -> Tensor:
    """A head at a time: which KV head it reads is looked up, nothing is repeated."""
    width = layer.head_dim
    heads = []
    for head in range(layer.num_heads):
        kv = head * layer.num_kv_heads // layer.num_heads
        q = (x @ layer.w_q[:, head * width : (head + 1) * width])[:, None]
        k, v = ((x @ w[:, kv * width : (kv + 1) * width])[:, None] for w in (layer.w_k, layer.w_v))
        heads.append(loop_attention(turned(q, positions, layer.theta), turned(k, positions, layer.theta), v))
    return torch.cat([head[:, 0] for head in heads], dim=-1) @ layer.w_o


def output_of(answer: Any, x: Tensor, layer: Layer, positions: Tensor) -> Tensor:
    got = answer.layer_attention(x, layer, positions)
    if not isinstance(got, Tensor) or got.shape != x.shape:
        shape = list(got.shape) if isinstance(got, Tensor) else repr(got)
        reject(f"the result is {shape}, expected a tensor of the shape of x, {list(x.shape)}")
    return got


def returns_hidden_rows(answer: Any, draw: Draw, length: int, num_heads: int, num_kv_heads: int) -> None:
    layer = random_layer(draw, num_heads, num_kv_heads)
    output_of(answer, draw.normal(length, 24), layer, torch.arange(length))


def reads_the_right_kv_head(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int) -> None:
    """Values of KV head j are all j, and W_O hands the heads through: each head must show its KV head's number."""
    width = 2
    base = random_layer(draw, num_heads, num_kv_heads, width, hidden=num_heads * width)
    numbers = torch.arange(num_kv_heads).repeat_interleave(width).float()
    x = draw.normal(3, num_heads * width)
    x[:, 0] = 1  # a constant input, so that w_v can make constants of it
    w_v = torch.zeros_like(base.w_v)
    w_v[0] = numbers
    through = torch.eye(num_heads * width)
    layer = Layer(base.w_q, base.w_k, w_v, through, num_heads, num_kv_heads, width, THETA)
    # All at position 0, where a rotation changes nothing: this test is about heads.
    got = output_of(answer, x, layer, torch.zeros(3, dtype=torch.long))[-1].view(num_heads, width)[:, 0]
    group = num_heads // num_kv_heads
    for head in range(num_heads):
        if abs(float(got[head]) - head // group) > 1e-4:
            read = [round(float(value), 2) for value in got]
            reject(
                f"query head {head} gets the values of KV head {read[head]:g}, expected KV head {head // group}",
                f"heads 0, 1, 2, ... get {read}",
                f"expected             {[h // group for h in range(num_heads)]}",
            )


def counts_distances(answer: Any, draw: Draw) -> None:
    """All positions later by the same amount: nothing may change, if queries and keys are both rotated."""
    layer, x = random_layer(draw, 4, 2), draw.normal(6, 24)
    here = output_of(answer, x, layer, torch.arange(6))
    there = output_of(answer, x, layer, torch.arange(6) + 9)
    what = "the result with all positions 9 later"
    compare(there, here, what=what, axes=("token", "feature"), rtol=1e-3, atol=1e-4)


def knows_positions(answer: Any, draw: Draw, length: int, num_heads: int, num_kv_heads: int) -> None:
    positions = 3 * torch.arange(length)
    for width in (8, 6):  # two layers, of different bases too: nothing may be kept from one for the other
        layer, x = random_layer(draw, num_heads, num_kv_heads, width), draw.normal(length, 24)
        layer = replace(layer, theta=THETAS[width % 4 // 2])
        expected = plain_layer(x, layer, positions)
        what = "the result with positions 0, 3, 6, ..."
        compare(output_of(answer, x, layer, positions), expected, what=what, axes=("token", "feature"), atol=1e-4)


@cache
def small_llama() -> Any:
    """Random weights in transformers' own Llama, with six query heads on two KV heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def matches_transformers(answer: Any, draw: Draw) -> None:
    model = small_llama()
    attention, rotary = model.model.layers[0].self_attn, model.model.rotary_emb
    x, positions = draw.normal(7, 48), torch.arange(7)
    hidden = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    embeddings = rotary(x[None], positions[None])
    expected = attention(hidden_states=x[None], position_embeddings=embeddings, attention_mask=hidden)[0][0]
    got = output_of(answer, x, layer_of(model, 0), positions)
    compare(got, expected, what="the layer's output", axes=("token", "feature"), rtol=1e-3, atol=1e-4)


VECTORS = (
    {"length": 1, "num_heads": 1, "width": 2},
    {"length": 3, "num_heads": 2, "width": 6},
    {"length": 4, "num_heads": 4, "width": 8},
)
WIDTHS = ({"width": 2}, {"width": 4}, {"width": 10})
LAYERS = (
    {"length": 1, "num_heads": 1, "num_kv_heads": 1},
    {"length": 5, "num_heads": 4, "num_kv_heads": 2},
    {"length": 3, "num_heads": 3, "num_kv_heads": 3},
    {"length": 6, "num_heads": 9, "num_kv_heads": 3},
    {"length": 80, "num_heads": 2, "num_kv_heads": 1},
)
MAPS = (
    {"num_heads": 4, "num_kv_heads": 2},
    {"num_heads": 9, "num_kv_heads": 3},
    {"num_heads": 5, "num_kv_heads": 1},
    {"num_heads": 24, "num_kv_heads": 12},
)

EXERCISES = (
    Exercise(
        id="2.3",
        title="Positions by rotation",
        kind="code",
        names=("rotate",),
        points=3,
        minutes=12,
        lines=5,
        difficulty=2,
        objective="encode positions as rotations of queries and keys",
        hints=(
            "Try one vector with a single 1 in it, at position 1. Two numbers of the result should differ from 0: "
            "the cosine and the sine of one angle.",
            "Pair i is made of numbers i and i + D/2. Its angle is position times frequency, and the frequency falls "
            "from 1 for pair 0 to nearly 1/theta for the last.",
            "A point (a, b) turned by an angle is (a cos - b sin, b cos + a sin).",
        ),
        checks=(
            Property("keeps the shape", keeps_the_shape, "A rotation gives a vector for a vector.", VECTORS),
            Property(
                "leaves position 0 as it is",
                leaves_position_0,
                "Angles at position 0 are 0; cosines are 1 and sines 0. Positions are given, not counted.",
                VECTORS,
            ),
            Property(
                "pairs the two halves",
                pairs_the_halves,
                "Llama-like models pair number i with number i + D/2. (The paper pairs 2i and 2i + 1; weights trained "
                "with one convention are useless with the other.)",
                WIDTHS,
            ),
            Property(
                "keeps lengths",
                keeps_lengths,
                "A rotation does not stretch: (a cos - b sin, b cos + a sin), with one angle for both.",
                VECTORS,
            ),
            Property(
                "turns each pair by its angle",
                turns_by_the_angle,
                "Pair i at position p: p * theta ** (-2 i / D) radians, from the first half towards the second.",
                WIDTHS,
            ),
            Property(
                "matches multiplication by complex numbers",
                matches_complex_numbers,
                "Single vectors are right. With several tokens and heads: every token has its own position, the heads "
                "of a token share it; and positions have no upper end.",
                (
                    *VECTORS,
                    {"length": 5, "num_heads": 2, "width": 8, "first": 5000},
                    {"length": 2, "num_heads": 1, "width": 160},
                ),
            ),
            Property("leaves its input alone", leaves_its_input_alone, "Make new tensors; x is used again elsewhere."),
        ),
    ),
    Exercise(
        id="2.4",
        title="One layer, with heads that share keys",
        kind="code",
        names=("layer_attention",),
        points=4,
        minutes=15,
        lines=5,
        difficulty=2,
        uses=("2.1", "2.3"),
        objective="build the attention of a real layer with rotation and grouped heads",
        hints=(
            "Check the shapes first: q has H heads, k and v have H_kv, and `naive_attention` wants as many of each.",
            "Queries and keys carry positions. Values do not: they are contents.",
            "Query head h reads KV head h // G, so each KV head is repeated G times in a row: 0 0 0 1 1 1 2 2 2. "
            "Which of `repeat` and `repeat_interleave` does that?",
        ),
        checks=(
            Property(
                "returns a row per token",
                returns_hidden_rows,
                "The output projection brings H * D numbers back to the width of x.",
                LAYERS,
            ),
            Property(
                "lets each query head read its KV head",
                reads_the_right_kv_head,
                "Neighbouring query heads share: h // G. `repeat` deals the KV heads out in turn instead.",
                MAPS,
            ),
            Property(
                "sees distances, not places",
                counts_distances,
                "With queries and keys rotated alike, scores depend on distances only; values are not rotated.",
            ),
            Property(
                "places tokens at their positions",
                knows_positions,
                "Rotate by `positions`, and with the layer's own theta: the distance of two tokens is the difference "
                "of their positions.",
                LAYERS,
            ),
            Property(
                "gives what transformers gives",
                matches_transformers,
                "Compare step by step with a single head first.",
            ),
        ),
        time_limit_s=40,
    ),
)
