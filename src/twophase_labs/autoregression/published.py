"""The measurement of a cache that was published, made smaller; the notebook and the prediction's check share it."""

import torch
from torch import Tensor

from twophase_labs.autoregression.toy import ToyModel

BATCH, PROMPT, NEW = 64, 50, 100  # the published measurement has a batch of 10,000


def published_setting() -> tuple[ToyModel, Tensor]:
    """The published measurement with a smaller batch."""
    generator = torch.Generator().manual_seed(0)
    return ToyModel(), torch.randint(0, 100, (BATCH, PROMPT), generator=generator)
