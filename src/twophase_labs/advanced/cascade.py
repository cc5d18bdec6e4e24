"""Attention of one step in one layer, by parts: what shared-prefix attention is made of."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

HEAD_DIM = 64
KV_BYTES = 2 * 3 * HEAD_DIM * 2  # of a token in one of SmolLM2's layers: K and V, 3 heads, 16 bits


def attend(
    queries: Float[Tensor, "M D"], keys: Float[Tensor, "S D"], values: Float[Tensor, "S D"]
) -> tuple[Float[Tensor, "M D"], Float[Tensor, " M"]]:
    """Attention of each query to all of these keys: the means, and the LSE in base 2, as in lab 2."""
    scores = queries @ keys.T / math.sqrt(keys.shape[-1]) / math.log(2)
    lse = (scores * math.log(2)).logsumexp(-1) / math.log(2)
    return torch.exp2(scores - lse[:, None]) @ values, lse
