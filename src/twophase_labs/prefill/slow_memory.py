"""Slow memory that counts: what a kernel loads from it and stores to it, in bytes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transfer:
    """Rows [start, end) of a tensor that crossed the border once."""

    kind: str  # 'load' or 'store'
    name: str
    start: int
    end: int
    num_bytes: int


class SlowMemory:
    """Named tensors, reached only by `load` and `store` of rows. `transfers` has every one of them, in order.

    As in a slice, rows past the end are left out: the last tile may be shorter than the others.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors
        self.transfers: list[Transfer] = []

    def load(self, name: str, start: int = 0, end: int | None = None) -> Tensor:
        """A copy of rows [start, end), now in fast memory."""
        tile = self._tensors[name][start:end].clone()
        self._note("load", name, start, tile)
        return tile

    def store(self, name: str, start: int, tile: Tensor) -> None:
        """Overwrite the rows from `start` on."""
        self._tensors[name][start : start + len(tile)] = tile
        self._note("store", name, start, tile)

    def peek(self, name: str) -> Tensor:
        """The whole tensor, uncounted: for a look at the result."""
        return self._tensors[name]

    @property
    def num_bytes(self) -> int:
        """Everything loaded or stored so far."""
        return sum(t.num_bytes for t in self.transfers)

    def _note(self, kind: str, name: str, start: int, tile: Tensor) -> None:
        self.transfers.append(Transfer(kind, name, start, start + len(tile), tile.nbytes))


def attention_memory(q: Tensor, k: Tensor, v: Tensor) -> SlowMemory:
    """Slow memory with q, k, v [L, D], with room for the scores and weights of the standard way, and for the output.

    Room is filled with NaN, so that what was never written shows.
    """
    length = len(q)
    scores, weights = (torch.full((length, length), torch.nan) for _ in range(2))
    return SlowMemory(q=q, k=k, v=v, scores=scores, weights=weights, out=torch.full_like(q, torch.nan))


def standard_attention(memory: SlowMemory) -> None:
    """Causal attention as three operations, each of which reads its inputs from slow memory and writes its result."""
    q, k = memory.load("q"), memory.load("k")
    scores = q @ k.mT / q.shape[-1] ** 0.5
    memory.store("scores", 0, scores)

    scores = memory.load("scores")
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    memory.store("weights", 0, scores.masked_fill(hidden, -torch.inf).softmax(-1))

    weights, v = memory.load("weights"), memory.load("v")
    memory.store("out", 0, weights @ v)
