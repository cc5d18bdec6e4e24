"""Rotary position embedding: the table of angles (RoFormer, arXiv:2104.09864, section 3.2.2)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.model.rope_config import RopeConfig


def rope_tables(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> tuple[Float[Tensor, "P D_half"], Float[Tensor, "P D_half"]]:
    """cos and sin of position * frequency in fp32, one row per position in [0, num_positions).

    fp32 and not fp64: models are trained with fp32 angles, whose rounding at position 8,000 is already 5e-4 radians.
    """
    inv_freq = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inv_freq)
    return angles.cos().to(device), angles.sin().to(device)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float[Tensor, "D_half"]:
    """Radians per position of each rotated pair: theta ** (-2 i / D) for i in [0, D/2), then the scaling."""
    inv_freq = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.rope_type == "linear":
        return inv_freq / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_scaled(inv_freq, rope)
    return inv_freq


def _llama3_scaled(inv_freq: Float[Tensor, "D_half"], rope: RopeConfig) -> Float[Tensor, "D_half"]:
    """Llama 3.1's scaling: slow pairs turn `factor` times slower, fast pairs are unchanged, others blended.

    A pair is slow if a full rotation takes more than original context / low_freq_factor positions, fast if it takes
    less than original context / high_freq_factor. (Meta, llama-models, models/llama3/model.py, apply_scaling.)
    """
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)  # in the original context
    fast = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    fast = fast.clamp(0, 1)  # 0: slow pair, 1: fast pair
    return (1 - fast) * inv_freq / rope.factor + fast * inv_freq
