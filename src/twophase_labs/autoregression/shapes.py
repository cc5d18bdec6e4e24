"""A check of shape and dtype alone, so that these are told before any value is."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import compare


def compare_shapes(got: Any, expected: Tensor, *, what: str = "the result", axes: Sequence[str] = ()) -> None:
    """Reject what is no tensor of this shape and dtype; values do not matter."""
    blank = torch.zeros_like(got) if isinstance(got, Tensor) else got
    compare(blank, torch.zeros_like(expected), what=what, axes=axes)
