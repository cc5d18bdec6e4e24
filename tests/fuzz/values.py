"""Values for any field: of the wrong type, at the edge of a range, or beyond it."""

import math
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import torch

NUMBERS = (
    0, 1, 2, 7, -1, -2, 0.0, -0.0, 0.5, 1.0, 1.5, 2.0, -0.5, 1e-3, 1e-30, 1e-45, 5e-324, 1e30, 3.4e38, 3.5e38, 1e300,
    2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**40, -(2**63), -(10**40), 200_000,
    math.nan, math.inf, -math.inf,
    np.int64(3), np.int8(-1), np.uint64(2**63), np.float32(0.5), np.float64("nan"), np.float16(1.5), np.bool_(True),
    Fraction(1, 2), Decimal("0.5"), 1j,
)  # fmt: skip
TEXTS = (
    "", " ", "x", "the quick brown", "\ud800", "\udcff", "a\udfffb", "\ufffd", "語語", "😀", "\0", "\n", "a" * 5000, "-1", "nan",
    "../x", "/etc/passwd", "%s%n", "[/red]", "\x1b[31m", "<|end|>", "{}", "[]", "None",
)  # fmt: skip


def odd(random: Random) -> Any:
    """Anything at all; made anew, so that what one request does to it cannot reach the next."""
    kind = random.randrange(6)
    if kind < 2:
        return random.choice(NUMBERS)
    if kind == 2:
        return random.choice(TEXTS)
    if kind == 3:
        return random.choice((None, True, False, b"bytes", int, print, object(), range(3), ..., NotImplemented))
    if kind == 4:
        return random.choice(
            (torch.tensor(1), torch.tensor([1.0]), torch.tensor([[1, 2]]), np.array(2), np.array([1, 2]))
        )
    return container(random)


def container(random: Random, depth: int = 2) -> Any:
    """A list, tuple, set, dict or iterator of odd values."""
    inside = [random.choice(NUMBERS + TEXTS) for _ in range(random.randrange(4))]
    if depth and random.random() < 0.3:
        inside.append(container(random, depth - 1))
    make = random.choice((list, tuple, iter, lambda items: {str(i): item for i, item in enumerate(items)}, nested))
    return make(inside)


def nested(inside: list[Any]) -> list[Any]:
    """Deeper than a recursive function may go."""
    for _ in range(3000):
        inside = [inside]
    return inside
