"""Random numbers for verifying drafts, and a way to see what distribution they lead to."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Chance:
    """Uniform numbers, and draws from weights. Numbers are made in stock: one at a time would take most of the time."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._stock: list[float] = []

    def uniform(self) -> float:
        """In [0, 1)."""
        if not self._stock:
            self._stock = self._generator.random(10_000).tolist()
        return self._stock.pop()

    def draw(self, weights: Any) -> int:
        """An index, with probability in proportion to its weight; the weights need not add up to 1.

        Raises:
            ValueError: A weight is negative or NaN, or all of them are 0.
        """
        weights = np.asarray(weights, np.float64)
        total = weights.sum()
        if not total > 0 or weights.min() < 0:
            raise ValueError(f"weights must not be negative, and not all 0; got {weights.round(4).tolist()}")
        found = int(np.searchsorted(weights.cumsum(), self.uniform() * total, side="right"))
        return min(found, int(weights.nonzero()[0][-1]))  # the sum may have been rounded down


def run_passes(
    verify: Callable[..., list[int]], p: np.ndarray, q: np.ndarray, num_passes: int, seed: int = 0
) -> list[list[int]]:
    """What so many passes yield, the drafts drawn from q anew each time."""
    chance = Chance(seed)
    outputs = []
    for _ in range(num_passes):
        draft = [chance.draw(row) for row in q]
        outputs.append(verify(draft, p, q, chance))
    return outputs


def counts_at(outputs: list[list[int]], place: int, vocab_size: int) -> np.ndarray:
    """How often each token came at a place, in passes that got so far."""
    return np.bincount([tokens[place] for tokens in outputs if len(tokens) > place], minlength=vocab_size)
