"""A language model of one attention block, small enough to see through, and what a cache saves it."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_labs.kit.timing import seconds

KeysValues = tuple[Float[Tensor, "B S D"], Float[Tensor, "B S D"]]


class ToyModel:
    """Token and position embeddings, one attention head with a residual connection, a read-out. Random weights.

    Attributes:
        num_projected: Tokens whose queries, keys and values were computed so far; only `project` changes it.
    """

    def __init__(self, seed: int = 0, width: int = 32, vocab_size: int = 100, num_positions: int = 2048) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.width = width
        self.tokens, self.positions = random(vocab_size, width), random(num_positions, width)
        self.w_q, self.w_k, self.w_v, self.w_o = (random(width, width) / math.sqrt(width) for _ in range(4))
        self.w_out = random(width, vocab_size)
        self.num_projected = 0

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
        """Keys and values of no token yet, each [B, 0, D]."""
        return torch.zeros(batch_size, 0, self.width), torch.zeros(batch_size, 0, self.width)


def speed_up(toy: ToyModel, prompt: Int[Tensor, "B T"], num_new: int) -> float:
    """How many times faster this machine writes `num_new` tokens with a cache than without."""
    without_s = seconds(lambda: _write(toy, prompt, num_new, cached=False), repeats=2)
    return without_s / seconds(lambda: _write(toy, prompt, num_new, cached=True), repeats=5)


def _write(toy: ToyModel, ids: Tensor, num_new: int, cached: bool) -> Tensor:
    """Greedy generation into tensors of the final size; the exercises build the same with growing ones."""
    batch_size, num_prompt = ids.shape
    ids = torch.cat([ids, ids.new_zeros(batch_size, num_new)], dim=1)
    keys, values = (torch.zeros(*ids.shape, toy.width) for _ in range(2))
    start = 0
    for end in range(num_prompt, num_prompt + num_new):
        x = toy.embed(ids[:, start:end], start)
        q, keys[:, start:end], values[:, start:end] = toy.project(x)
        scores = q @ keys[:, :end].mT / math.sqrt(toy.width)
        future = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        attended = scores.masked_fill(future, -math.inf).softmax(-1) @ values[:, :end]
        ids[:, end] = toy.logits(x, attended)[:, -1].argmax(-1)
        start = end if cached else 0
    return ids
