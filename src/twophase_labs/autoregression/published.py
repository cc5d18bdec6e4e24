"""The setting in which the toy model's cache is measured: a published one with a smaller batch."""

import torch
from torch import Tensor

from twophase_labs.autoregression.toy import ToyModel

BATCH, PROMPT, NEW = 64, 50, 100  # the published measurement has a batch of 10,000


def published_setting() -> tuple[ToyModel, Tensor]:
    """The model, and a batch of random prompts."""
    generator = torch.Generator().manual_seed(0)
    return ToyModel(), torch.randint(0, 100, (BATCH, PROMPT), generator=generator)
