"""SmolLM2 with its linear layers changed: their weights, what they are given, and what both do to its predictions.

Texts: the linear layers' inputs are recorded on one (calibration), perplexity is measured on another one.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_labs.kit.models import smollm2
from twophase_tools.bench.perplexity import more_prose, prose

NUM_TOKENS = 512
NUM_LAYERS = 30
# The engine multiplies queries, keys and values by one matrix, and gate and up by one, so that a layer has four.
KINDS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
PLACES = tuple((layer, kind) for layer in range(NUM_LAYERS) for kind in KINDS)

Place = tuple[int, str]
Weight = Float[Tensor, "O I"]
Change = Callable[[str, Tensor], Tensor]


@cache
def linears() -> dict[str, Any]:
    """The modules of the decoder layers that multiply by a weight [O, I], by a name such as '3.mlp.down_proj'."""
    model, _ = smollm2()
    layers = model.model.layers.named_modules()
    return {name: module for name, module in layers if isinstance(module, torch.nn.Linear)}


def weight_of(name: str) -> Weight:
    """A copy of SmolLM2's own."""
    return linears()[name].weight.detach().clone()


def matrix(place: Place) -> Float[Tensor, "O I"]:
    """A matrix of the engine: SmolLM2's own, one under the other."""
    layer, kind = place
    return torch.cat([linears()[f"{layer}.{name}"].weight.detach() for name in KINDS[kind]])


@contextmanager
def changed(weight: Change | None = None, x: Change | None = None) -> Iterator[None]:
    """Inside, each linear layer's weight is `weight(name, w [O, I])`, and what it is given `x(name, rows [..., I])`.

    Afterwards, also after an error, the model is as it was.
    """
    own = {name: module.weight.data for name, module in linears().items()}
    hooks = []
    try:
        for name, module in linears().items():
            if weight is not None:
                module.weight.data = weight(name, own[name].clone())
            if x is not None:
                hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: (x(name, args[0]),)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, module in linears().items():
            module.weight.data = own[name]


@cache
def token_ids(is_calibration: bool = False) -> Int[Tensor, " T"]:
    """The prose on which perplexity is measured, or the other one, which calibrates."""
    _, tokenizer = smollm2()
    return torch.tensor(tokenizer(more_prose() if is_calibration else prose())["input_ids"])


def mean_surprise(num_tokens: int = NUM_TOKENS, is_calibration: bool = False) -> float:
    """Of the model as it is now, in nats per token of a text's beginning."""
    model, _ = smollm2()
    ids = token_ids(is_calibration)[:num_tokens]
    with torch.inference_mode():
        logits = model(ids[None, :-1]).logits[0]
        return float(torch.nn.functional.cross_entropy(logits, ids[1:]))


def perplexity(
    weight: Change | None = None, x: Change | None = None, num_tokens: int = NUM_TOKENS, is_calibration: bool = False
) -> float:
    """Of the model so changed; see `changed`. Of the unchanged one it is computed once."""
    if weight is None and x is None:
        return own_perplexity(num_tokens, is_calibration)
    with changed(weight, x):
        return math.exp(mean_surprise(num_tokens, is_calibration))


@cache
def own_perplexity(num_tokens: int, is_calibration: bool = False) -> float:
    """SmolLM2's, unchanged."""
    return math.exp(mean_surprise(num_tokens, is_calibration))


@cache
def recorded_inputs(num_tokens: int = NUM_TOKENS, is_calibration: bool = True) -> dict[str, Float[Tensor, "T I"]]:
    """What each linear layer of the unchanged model is given for a text's first tokens; not to be written to.

    Layers of the same input share one tensor.
    """
    inputs: dict[str, Tensor] = {}

    def record(name: str, rows: Tensor) -> Tensor:
        inputs[name] = rows[0]
        return rows

    model, _ = smollm2()
    with changed(x=record), torch.inference_mode():
        model.model(token_ids(is_calibration)[None, :num_tokens])
    return inputs
