"""A blank names itself when it is used, and not before."""

import math

import numpy as np
import pytest
import torch

from twophase_labs import ____
from twophase_labs.machine.unfilled import Unfilled, UnfilledError, blanks_left

BLANK = ____("1.3", 2, "the last row")


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b(1),
        lambda b: b + 1,
        lambda b: 2**b,
        lambda b: torch.ones(2) * b,
        lambda b: b < 3,
        bool,
        list,
        lambda b: b[0],
        lambda b: [1, 2][b],
        hash,
        math.sqrt,
        lambda b: f"{b:.2f}",
        lambda b: torch.softmax(b, -1),
        torch.tensor,
        lambda b: np.asarray(b) + 1,
    ],
)
def test_use_raises(use):
    with pytest.raises(UnfilledError, match=r"Exercise 1\.3, blank 2: the last row is still empty"):
        use(BLANK)


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


def test_defining_and_showing_do_not():
    assert isinstance(Both.size, Unfilled)
    assert not isinstance(BLANK, torch.Tensor)
    assert "blank 2: the last row" in repr(BLANK)
    assert "blank 2" in str(BLANK)
    assert {"key": BLANK}["key"] is BLANK
    with pytest.raises(UnfilledError, match=r"Exercise 1\.3, blank 1 is still empty"):
        Both().a


@pytest.mark.parametrize(
    ("thing", "left"),
    [(Whole, {1}), (half, {1, 2}), (Both, {1, 2, 4}), ({"k": BLANK, "l": 1}, {2}), (3, set()), (len, set())],
)
def test_blanks_left(thing, left):
    assert blanks_left(thing, "1.3") == left
    assert blanks_left(BLANK, "1.4") == set()
