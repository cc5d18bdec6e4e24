"""One attention layer as its weights, and what it computes: enough to split it and to compare."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """Weights as PyTorch stores them, [out, in]: `x @ q.T` projects.

    Attributes:
        q: [num_heads * head_dim, hidden]; k and v: [num_kv_heads * head_dim, hidden].
        o: [hidden, num_heads * head_dim].
        theta: Base of RoPE's frequencies.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    num_heads: int
    num_kv_heads: int
    head_dim: int
    theta: float = 10_000.0


def attend(x: Tensor, weights: AttentionWeights) -> Tensor:
    """Causal attention over x [T, hidden], with RoPE and grouped heads; returns [T, hidden].

    Every head works alone until `o` adds them all up; that is why heads can be computed in different places.
    """
    q, k, v = (
        (x @ weight.T).unflatten(1, (-1, weights.head_dim)).transpose(0, 1)
        for weight in (weights.q, weights.k, weights.v)
    )
    q, k = rotate(q, weights.theta), rotate(k, weights.theta)
    group = weights.num_heads // weights.num_kv_heads
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    hidden_keys = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(1, 2) * weights.head_dim**-0.5).masked_fill(hidden_keys, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1) @ weights.o.T


def rotate(heads: Tensor, theta: float) -> Tensor:
    """RoPE on [heads, T, D], half-split pairs (arXiv:2104.09864)."""
    half = heads.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=heads.dtype) / half)
    angles = torch.arange(heads.shape[1], dtype=heads.dtype)[:, None] * frequencies
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def weights_of(model: Any, layer: int) -> AttentionWeights:
    """The attention of one layer of a transformers Llama."""
    attention, config = model.model.layers[layer].self_attn, model.config
    return AttentionWeights(
        attention.q_proj.weight,
        attention.k_proj.weight,
        attention.v_proj.weight,
        attention.o_proj.weight,
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        float(config.rope_parameters["rope_theta"]),
    )
