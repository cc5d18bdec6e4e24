"""A blank names itself when it is used, and not before."""

import math

import numpy as np
import pytest
import torch

from twophase_labs import ____
from twophase_labs.machine.unfilled import Unfilled, UnfilledError, blanks_left

BLANK = ____("1.3", 2, "the last row")

USES = {
    "call": lambda b: b(1),
    "arithmetic": lambda b: b + 1,
    "reflected": lambda b: 2 ** b,
    "with a tensor": lambda b: torch.ones(2) * b,
    "comparison": lambda b: b < 3,
    "bool": lambda b: bool(b),
    "iteration": lambda b: list(b),
    "indexing": lambda b: b[0],
    "as an index": lambda b: [1, 2][b],
    "hash": lambda b: {b: 1},
    "float": lambda b: math.sqrt(b),
    "format": lambda b: f"{b:.2f}",
    "torch function": lambda b: torch.softmax(b, -1),
    "tensor of it": lambda b: torch.tensor(b),
    "numpy": lambda b: np.asarray(b) + 1,
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_use_raises(use):
    with pytest.raises(UnfilledError, match=r"Exercise 1\.3, blank 2: the last row is still empty"):
        USES[use](BLANK)


def test_defining_and_showing_do_not():
    assert isinstance(BLANK, Unfilled)
    assert "blank 2: the last row" in repr(BLANK)
    assert "blank 2" in str(BLANK)
    assert {"key": BLANK}["key"] is BLANK
    assert not isinstance(BLANK, torch.Tensor)

    def untouched(x):
        return ____("1.3", 1)

    class Untouched:
        size = ____("1.3", 3)

    with pytest.raises(UnfilledError, match=r"Exercise 1\.3, blank 1 is still empty"):
        untouched(1)
    assert isinstance(Untouched.size, Unfilled)


def test_blanks_left():
    def half(x):
        def inner():
            return [____("1.3", 2, "b") for _ in x]

        return inner() + ____("1.3", 1, "a") + ____("1.4", 5)

    class Both:
        size = ____("1.3", 4)

        @property
        def a(self):
            return ____("1.3", 1)

        @staticmethod
        def b():
            return ____("1.3", 2)

    class Whole:
        """All of it is to be written."""

        ____("1.3", 1, "its methods")

    assert blanks_left(Whole, "1.3") == {1}
    assert blanks_left(half, "1.3") == {1, 2}
    assert blanks_left(Both, "1.3") == {1, 2, 4}
    assert blanks_left({"k": BLANK, "l": 1}, "1.3") == {2}
    assert blanks_left(BLANK, "1.4") == set()
    assert blanks_left(3, "1.3") == blanks_left(len, "1.3") == set()
