"""What an answer returned, as lists: an array of numbers is as good as a list of them."""

from typing import Any

import numpy as np
import torch

from twophase_labs.machine.checks import plain


def listed(value: Any) -> Any:
    """Nested lists for a NumPy array or a tensor of at least one dimension; anything else as `plain` gives it."""
    value = plain(value)
    return value.tolist() if type(value) in (np.ndarray, torch.Tensor) else value
