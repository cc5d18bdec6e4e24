"""What a call has returned stays as it is, whatever is called next."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from twophase_labs.machine.checks import reject


@contextmanager
def lasting(**results: Tensor) -> Iterator[None]:
    """Reject calls inside that change what an earlier call returned: a buffer that is used again, for instance."""
    before = {name: value.clone() for name, value in results.items()}
    yield
    for name, value in results.items():
        if not torch.equal(value.nan_to_num(), before[name].nan_to_num()):
            reject(
                f"a second call, with other inputs, changed `{name}` of the first one's result",
                "Make a new tensor in each call; what is kept between calls belongs to all of them.",
            )
