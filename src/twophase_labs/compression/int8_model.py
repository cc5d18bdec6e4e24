"""Section 4: SmolLM2 with its linear layers in int8, weights and activations, and smoothed before that."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from twophase_labs.compression.changed_model import (
    NUM_TOKENS,
    changed,
    linears,
    mean_surprise,
    perplexity,
    recorded_inputs,
    weight_of,
)
from twophase_labs.kit.models import smollm2

INT8_MAX = 127


def in_codes(weight: Float[Tensor, "O I"]) -> tuple[Int8[Tensor, "O I"], Float[Tensor, "O"]]:
    """int8 codes with a scale per output, rounded to nearest."""
    scales = weight.abs().amax(1).div(INT8_MAX).clamp(min=1e-30)
    return (weight / scales[:, None]).round().to(torch.int8), scales


def rounded(weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    codes, scales = in_codes(weight)
    return codes * scales[:, None]


def with_one_scale(x: Tensor, largest: float) -> Tensor:
    """Rounded to int8 codes of which 127 stands for `largest`; what is larger becomes that."""
    scale = largest / INT8_MAX
    return (x / scale).round().clamp(-INT8_MAX, INT8_MAX) * scale


def int8_weights() -> float:
    """Perplexity over the plain model's, the activations left as they are."""
    return perplexity(lambda _, weight: rounded(weight)) / perplexity()


@cache
def one_scale_per_tensor() -> float:
    """The same, with each layer's input rounded by one scale that the calibration text has set."""
    largest = {name: float(x.abs().max()) for name, x in recorded_inputs().items()}
    return (
        perplexity(lambda _, weight: rounded(weight), lambda name, x: with_one_scale(x, largest[name])) / perplexity()
    )


def one_scale_but_first_token() -> float:
    """As above, but the text's first token has a scale of its own in each layer."""
    first, others = (
        {name: float(x[rows].abs().max()) for name, x in recorded_inputs().items()}
        for rows in (slice(0, 1), slice(1, None))
    )

    def with_two_scales(name: str, x: Tensor) -> Tensor:
        parts = [with_one_scale(x[..., :1, :], first[name]), with_one_scale(x[..., 1:, :], others[name])]
        return torch.cat(parts, dim=-2)

    return perplexity(lambda _, weight: rounded(weight), with_two_scales) / perplexity()


def own_linear(int8_linear: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
    """The same, each linear layer computed by `int8_linear(x, codes, scales)`."""

    def forward_with(codes: Tensor, scales: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: int8_linear(x[0], codes, scales)[None]

    before = perplexity()
    try:
        for module in linears().values():
            module.forward = forward_with(*in_codes(module.weight.data))
        return math.exp(mean_surprise()) / before
    finally:
        for module in linears().values():
            vars(module).pop("forward", None)


# -- smoothing

NORMS = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
)


def smooth(
    norm_weight: Float[Tensor, "I"], weights: list[Tensor], x_max: Float[Tensor, "I"], alpha: float
) -> tuple[Float[Tensor, "I"], list[Tensor]]:
    """The norm's new weight and the new weights [O, I]: factors divide the one and multiply the others' columns. Inputs
    that are always 0, or that no weight uses, have the factor 1."""
    w_max = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
    factors = x_max**alpha / w_max ** (1 - alpha)
    factors = torch.where((x_max > 0) & (w_max > 0), factors, 1)
    return norm_weight / factors, [w * factors for w in weights]


@contextmanager
def smoothed(alpha: float, with_down: bool) -> Iterator[tuple[dict[str, Tensor], dict[str, float]]]:
    """The model's norms smoothed; its weights, to be put into it, and the largest input of each layer then.

    Args:
        with_down: Whether down_proj's factors go into up_proj, whose outputs its inputs are multiples of.
    """
    layers, inputs = smollm2()[0].model.layers, recorded_inputs()
    weights = {name: weight_of(name) for name in linears()}
    divided_by = {name: torch.ones(1) for name in linears()}
    own = {}
    try:
        for number, layer in enumerate(layers):
            for norm_name, short in NORMS:
                names = [f"{number}.{each}" for each in short]
                norm = getattr(layer, norm_name).weight
                own[norm] = norm.data
                x_max = inputs[names[0]].abs().amax(0)
                norm.data, new = smooth(own[norm].clone(), [weights[name] for name in names], x_max, alpha)
                weights |= zip(names, new, strict=True)
                divided_by |= dict.fromkeys(names, own[norm] / norm.data)
            if with_down:
                down, up = f"{number}.mlp.down_proj", f"{number}.mlp.up_proj"
                x_max = inputs[down].abs().amax(0)
                inverse, (weights[down],) = smooth(torch.ones_like(x_max), [weights[down]], x_max, alpha)
                weights[up] = weights[up] * inverse[:, None]
                divided_by[down] = 1 / inverse
        yield weights, {name: float((inputs[name] / divided_by[name]).abs().max()) for name in linears()}
    finally:
        for norm, data in own.items():
            norm.data = data


def one_scale_smoothed(
    alpha: float, with_down: bool = True, num_tokens: int = NUM_TOKENS, is_calibration: bool = True
) -> float:
    """As `one_scale_per_tensor`, after smoothing; on the text that calibrates, or on the other."""
    before = perplexity(num_tokens=num_tokens, is_calibration=is_calibration)
    with smoothed(alpha, with_down) as (weights, largest):

        def with_its_scale(name: str, x: Tensor) -> Tensor:
            return with_one_scale(x, largest[name])

        after = perplexity(lambda name, _: rounded(weights[name]), with_its_scale, num_tokens, is_calibration)
    return after / before


def largest_change(alpha: float) -> float:
    """Of a logit by smoothing without rounding, relative to the largest logit; over a few tokens."""
    model, tokenizer = smollm2()
    ids = torch.tensor([tokenizer("The purpose of a lighthouse is")["input_ids"]])
    with torch.inference_mode():
        before: Any = model(ids).logits
        with smoothed(alpha, True) as (weights, _), changed(lambda name, _: weights[name]):
            after = model(ids).logits
    return float((after - before).abs().max() / before.abs().max())
