"""RoPE for the checks and measurements of this part (arXiv:2104.09864, half-split pairs)."""

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, base: int | float = 10_000) -> Tensor:
    """x [L, H, D] with the pair (i, i + D/2) of each head turned by position * base^(-2i/D)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
