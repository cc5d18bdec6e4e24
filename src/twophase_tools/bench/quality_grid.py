"""Whether a model's plain weights were rounded to 4 bits before: their numbers are floats, and only a few of them.

The default model's are: they come from a GGUF file of Q4_1. Rounded again on the same grid nothing moves, so the gate
sees no cost where the cost was paid earlier; a report must say so.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from twophase.model.linear import TorchLinear
from twophase.model.weights import ModelWeights

GROUP, MOST_VALUES = 32, 16  # of 32 weights that nobody rounded, hardly any two are the same
NOTE = (
    f"note: before, too, the weights have at most {MOST_VALUES} values in each group of {GROUP}: they were rounded to "
    "4 bits earlier, and what that cost cannot be seen here."
)


def was_rounded(weights: ModelWeights) -> bool:
    """Whether every layer's attention has weights of so few values, or is quantised as it stands."""
    return all(_has_few_values(linear) for linear in _of_attention(weights))


def _of_attention(weights: ModelWeights) -> Iterator[object]:
    for layer in weights.layers:
        yield layer.qkv
        yield layer.o


def _has_few_values(linear: object) -> bool:
    """Of the first group of each output: what the layer makes of the first inputs, one at a time."""
    if not isinstance(linear, TorchLinear):
        return True
    inputs = torch.eye(linear.weight.shape[1], dtype=linear.weight.dtype, device=linear.weight.device)[:GROUP]
    ranked = replace(linear, bias=None)(inputs).sort(dim=0).values
    num_values = 1 + (ranked.diff(dim=0) != 0).sum(dim=0)
    return bool((num_values <= MOST_VALUES).all())
