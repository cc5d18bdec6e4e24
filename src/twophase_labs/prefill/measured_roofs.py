"""This machine's two roofs, and where a real model's layers lie under them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase.model.linear import make_linear
from twophase_labs.kit.ceilings import copy_bandwidth, matmul_rate
from twophase_labs.kit.timing import seconds

CPU = torch.device("cpu")  # also on a machine with a GPU: the model that is timed here runs on the CPU


def measure_roofs() -> tuple[float, float]:
    """FLOP per second of a large float32 matrix product, bytes per second of a large copy (read plus written)."""
    return matmul_rate(CPU), copy_bandwidth(CPU)


def time_projection(model: Any, name: str, num_tokens: int) -> float:
    """Seconds of one projection of one layer in the engine's linear layer, averaged over all layers.

    All layers take their turn, so that each finds its weights in memory and not in a cache, as in a real pass.
    """
    part = "self_attn" if name in ("q", "k", "v", "o") else "mlp"
    weights = [getattr(getattr(layer, part), f"{name}_proj").weight for layer in model.model.layers]
    linears = [make_linear(weight.detach()) for weight in weights]
    x = torch.randn(num_tokens, weights[0].shape[1])
    return _best(lambda: [linear(x) for linear in linears]) / len(linears)


def copy_rates(sizes_bytes: Sequence[int]) -> dict[int, float]:
    """Bytes per second, read plus written, of copying over and over within memory of so many bytes."""
    rates = {}
    for size in sizes_bytes:
        source, target = torch.ones(2, size // 8)
        times = max(1, 2**25 // size)

        def copy(source: Tensor = source, target: Tensor = target, times: int = times) -> None:
            for _ in range(times):
                target.copy_(source)

        rates[size] = times * size / _best(copy)
    return rates


def time_attention(num_heads: int, num_kv_heads: int, head_dim: int, num_tokens: int) -> float:
    """Seconds of PyTorch's fused causal attention of one layer."""
    q = torch.randn(1, num_heads, num_tokens, head_dim)
    k, v = torch.randn(2, 1, num_kv_heads, num_tokens, head_dim)
    return _best(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


@torch.no_grad()
def _best(call: Callable[[], object]) -> float:
    call()
    return seconds(call, repeats=3)
