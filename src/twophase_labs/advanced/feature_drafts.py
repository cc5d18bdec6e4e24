"""Drafts from the large model's own hidden states: a head in the manner of EAGLE, but linear, fitted by least squares.

The hidden state h from which a token x was drawn, and the embedding of x, go in; out comes an estimate of the next
hidden state, and the large model's own output matrix makes logits of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_labs.advanced.prefix_service import shared_engine
from twophase_labs.advanced.train_draft import Example, answers_of
from twophase_labs.kit.models import smollm2

RIDGE = 30.0  # keeps the map small where the answers say little


class Places(NamedTuple):
    """Of each token of some answers but the last: what it was drawn from, its embedding, and both of the next one."""

    hidden: Float[Tensor, "N D"]
    embedded: Float[Tensor, "N D"]
    next_hidden: Float[Tensor, "N D"]
    next_ids: Int[Tensor, " N"]


def places_of(asked: Sequence[str]) -> Places:
    """SmolLM2's answers to these prompts.

    The engine shows logits, not hidden states. But logits are linear in the hidden state, with many more rows than
    columns, so least squares gives it back.
    """
    model, _ = smollm2()
    examples: list[Example] = answers_of(shared_engine(), asked)
    matrix = model.lm_head.weight
    inverse = torch.linalg.inv(matrix.T @ matrix)
    parts = []
    for _, answer, logits in examples:
        hidden, ids = logits.float() @ matrix @ inverse, torch.tensor(answer)
        parts.append((hidden[:-1], model.model.embed_tokens(ids[:-1]), hidden[1:], ids[1:]))
    return Places(*map(torch.cat, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Head:
    """A linear map from the two inputs to the next hidden state; `types` are the tokens that it may draft."""

    weight: Float[Tensor, "I D"]
    bias: Float[Tensor, " D"]
    types: Int[Tensor, " K"]

    def __call__(self, inputs: Float[Tensor, "*N I"]) -> Float[Tensor, "*N D"]:
        return inputs @ self.weight + self.bias

    def likeliest(self, hidden: Float[Tensor, "*N D"], num: int) -> Int[Tensor, "*N num"]:
        """The tokens with the largest logits, by the large model's output matrix."""
        logits = hidden @ smollm2()[0].lm_head.weight[self.types].T
        return self.types[logits.topk(num).indices]


def fit(inputs: Float[Tensor, "N I"], places: Places) -> Head:
    """The map with the smallest squared error of the next hidden state, by ridge regression."""
    mean, target_mean = inputs.mean(0), places.next_hidden.mean(0)
    scale = inputs.std(0) + 1e-6
    x, y = (inputs - mean) / scale, places.next_hidden - target_mean
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ y) / scale[:, None]
    return Head(weight, target_mean - mean @ weight, places.next_ids.unique())
