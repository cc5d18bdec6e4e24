"""2.1 The attention of one real layer: rotary positions, and heads that share keys."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.prefill.real_layer import Layer, layer_of

LAYERS = cases(length=(1, 5, 3, 6, 80), num_heads=(1, 4, 3, 9, 2), num_kv_heads=(1, 2, 3, 3, 1))
MAPS = cases(num_heads=(4, 9, 5, 24), num_kv_heads=(2, 3, 1, 12))

LAYER = exercise(
    "2.1", "One layer, with heads that share keys", "layer_attention", points=4, minutes=11, lines=7, difficulty=2
)
LAYER.time_limit_s = 40
LAYER.objective = "build the attention of a real layer with rotation and grouped heads"
LAYER.hints = (
    "Write the shapes down first. `x @ layer.w_q` is [L, H * D]; `naive_attention` wants [L, H, D] three times, and "
    "k and v have only H_kv heads.",
    "Queries and keys carry positions, so both are rotated, with the layer's own theta. Values are contents and are "
    "not. Query head h reads KV head h // G: each KV head is repeated G times in a row, 0 0 0 1 1 1 2 2 2. Which of "
    "`repeat` and `repeat_interleave` does that?",
    "Skeleton:\n"
    "q = (x @ layer.w_q).view(len(x), layer.num_heads, layer.head_dim)\n"
    "k, v = ...  # likewise, with num_kv_heads\n"
    "q, k = ...  # rotated\n"
    "k, v = ...  # a KV head for each query head: repeat_interleave over dim 1\n"
    "return naive_attention(q, k, v) @ ...",
)

AXES = ("token", "feature")
THETA = 100.0  # small, so that every pair turns visibly within a few positions
THETAS = (THETA, 37.0, 10_000.0)


def loop_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A query and a head at a time, over the keys up to its own position, in float64: [L, H, D]."""
    length, num_heads, width = q.shape
    out = torch.zeros(length, num_heads, v.shape[2], dtype=torch.float64)
    for token in range(length):
        for head in range(num_heads):
            keys, values = (x[: token + 1, head].double() for x in (k, v))
            scores = keys @ q[token, head].double() / math.sqrt(width)
            weights = (scores - scores.max()).exp()
            out[token, head] = weights @ values / weights.sum()
    return out.float()


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


@LAYER.check("returns a row per token", *LAYERS)
def returns_hidden_rows(answer: Any, draw: Draw, length: int, num_heads: int, num_kv_heads: int) -> None:
    """The output projection brings H * D elements back to the width of x."""
    layer = random_layer(draw, num_heads, num_kv_heads)
    output_of(answer, draw.normal(length, 24), layer, torch.arange(length))


@LAYER.check("lets each query head read its KV head", *MAPS)
def reads_the_right_kv_head(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int) -> None:
    """Neighbouring query heads share: h // G. `repeat` deals the KV heads out in turn instead."""
    # Values of KV head j are all j, and W_O hands the heads through: each head must show its KV head's number.
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


@LAYER.check("sees distances, not places", later=(9, 6000), atol=(1e-4, 0.05))
def counts_distances(answer: Any, draw: Draw, later: int, atol: float) -> None:
    """With queries and keys rotated alike, scores depend on distances only; values are not rotated."""
    # All positions later by the same amount: nothing may change, if queries and keys are both rotated.
    # Far out the angles of float32 are rounded: 6,000 radians to some 0.0005.
    layer, x = random_layer(draw, 4, 2), draw.normal(6, 24)
    here = output_of(answer, x, layer, torch.arange(6))
    there = output_of(answer, x, layer, torch.arange(6) + later)
    what = f"the result with all positions {later:,} later"
    compare(there, here, what=what, axes=AXES, rtol=1e-3, atol=atol, any_dtype=True)


@LAYER.check("places tokens at their positions", *LAYERS)
def knows_positions(answer: Any, draw: Draw, length: int, num_heads: int, num_kv_heads: int) -> None:
    """Rotate queries and keys by `positions` (they need not be 0, 1, 2, ...) and with the layer's own theta; every
    size comes from the layer too."""
    positions = draw.integers(1, 6, length).cumsum(0) - 1  # any that rise
    for width in (8, 6):  # two layers, of different bases too: nothing may be kept from one for the other
        layer, x = random_layer(draw, num_heads, num_kv_heads, width), draw.normal(length, 24)
        layer = replace(layer, theta=THETAS[width % 4 // 2])
        expected = plain_layer(x, layer, positions)
        first = ", ".join(map(str, positions[:4].tolist()))
        what = f"the result with positions {first}{', ...' * (length > 4)}"
        compare(output_of(answer, x, layer, positions), expected, what=what, axes=AXES, atol=1e-4, any_dtype=True)


@LAYER.check("gives what transformers gives")
def matches_transformers(answer: Any, draw: Draw) -> None:
    """Compare step by step with a single head first."""
    model = small_llama()
    attention, rotary = model.model.layers[0].self_attn, model.model.rotary_emb
    x, positions = draw.normal(7, 48), torch.arange(7)
    hidden = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    embeddings = rotary(x[None], positions[None])
    expected = attention(hidden_states=x[None], position_embeddings=embeddings, attention_mask=hidden)[0][0]
    got = output_of(answer, x, layer_of(model, 0), positions)
    compare(got, expected, what="the layer's output", axes=AXES, rtol=1e-3, atol=1e-4, any_dtype=True)


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


@LAYER.check("gives what the card says")
def knows_the_examples(answer: Any, draw: Draw) -> None:
    """A token alone gives all its weight to itself, wherever it stands; and a token never needs a later one."""
    # What the card says: a layer made of unit matrices hands values through; all positions may move together.
    eye = torch.eye(4)
    layer = Layer(eye, eye[:, :2], eye[:, 2:], eye, num_heads=2, num_kv_heads=1, head_dim=2, theta=100.0)
    for position in (0, 7):
        got = output_of(answer, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), layer, torch.tensor([position]))
        compare(got, torch.tensor([[3.0, 4.0, 3.0, 4.0]]), what="the first example", axes=AXES, any_dtype=True)
    layer, x = random_layer(draw, 6, 2), draw.normal(9, 24)
    whole = output_of(answer, x, layer, torch.arange(9))
    part = output_of(answer, x[:5], layer, torch.arange(5))
    compare(part, whole[:5], what="the first 5 of 9 tokens, read alone,", axes=AXES, any_dtype=True)


@LAYER.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _ write in place; make new tensors."""
    layer, x, positions = random_layer(draw, 4, 2), draw.normal(5, 24), 3 + 2 * torch.arange(5)
    with unchanged(x=x, positions=positions, w_q=layer.w_q, w_k=layer.w_k, w_v=layer.w_v, w_o=layer.w_o):
        output_of(answer, x, layer, positions)
