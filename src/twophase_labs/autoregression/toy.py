"""A language model of one attention block, small enough to read whole; and a model whose every answer is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

KeysValues = tuple[Float[Tensor, "B S D"], Float[Tensor, "B S D"]]


class ToyModel:
    """Token and position embeddings, one attention head with a residual connection, a read-out; random weights."""

    def __init__(self, seed: int = 0, width: int = 32, vocab_size: int = 100, num_positions: int = 2048) -> None:
        random = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        self.width = width
        self.num_projected = 0  # tokens whose queries, keys and values were computed so far
        self.tokens, self.positions = random(vocab_size, width), random(num_positions, width)
        self.w_q, self.w_k, self.w_v, self.w_o = (random(width, width) / math.sqrt(width) for _ in range(4))
        self.w_out = random(width, vocab_size)

    def embed(self, ids: Int[Tensor, "B L"], start: int) -> Float[Tensor, "B L D"]:
        """Token embeddings plus the embeddings of positions start, start + 1, ..."""
        return self.tokens[ids] + self.positions[start : start + ids.shape[1]]

    def project(self, x: Float[Tensor, "B L D"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, L, D]."""
        self.num_projected += x.shape[0] * x.shape[1]
        return x @ self.w_q, x @ self.w_k, x @ self.w_v

    def logits(self, x: Float[Tensor, "B L D"], attended: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """What follows the attention: output projection, residual, read-out."""
        return (x + attended @ self.w_o) @ self.w_out

    def empty_cache(self, batch_size: int) -> KeysValues:
        return torch.zeros(batch_size, 0, self.width), torch.zeros(batch_size, 0, self.width)


@dataclass
class Counted:
    """What `count_up` gives back."""

    logits: Float[Tensor, "B T V"]
    past_key_values: None = None


def count_up(ids: Int[Tensor, "B T"], **options: Any) -> Counted:
    """Called like a transformers model, without its weights: after token n it predicts n + 1, of ten tokens.

    >>> count_up(torch.tensor([[3, 4]])).logits.argmax(-1)
    tensor([[4, 5]])
    """
    return Counted(torch.nn.functional.one_hot((ids + 1) % 10, 10).float())


def with_cache(model: Any) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    """A transformers model as `step(new_ids, cache)`; the cache is transformers' own, and None is the empty one."""

    def step(new_ids: Int[Tensor, "B L"], cache: Any) -> tuple[Float[Tensor, "B L V"], Any]:
        output = model(new_ids, past_key_values=cache, use_cache=True)
        return output.logits, output.past_key_values

    return step
