"""Launchers of lab 3's teaching kernels. They allocate what is not given and launch; they check nothing.

A kernel is given as an argument, so that yours, the reference and a wrong one all run through the same lines.
"""

from typing import Any

import torch
from torch import Tensor

from twophase_kernels._triton import next_power_of_2

LOG2_E = 1.4426950408889634  # exp(x) == exp2(x * LOG2_E)


def launch_paged_decode(
    kernel: Any,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    out: Tensor | None = None,
    block_n: int | None = None,
    **options: Any,
) -> Tensor:
    """Attention of one query per sequence over its pages: a program per (sequence, KV head).

    Args:
        q: [B, H, D]; copied if it is not contiguous.
        k_cache, v_cache: [N, H_kv, page, D], contiguous.
        block_tables, seq_lens: int32 [B, W] and [B]; every sequence has at least one token.
        scale: Factor on Q.K.
        out: [B, H, D] to write to; allocated by default.
        block_n: Keys per tile, a power of two from 16; by default what fits into a GPU program's registers.
        options: `num_warps` and `num_stages`, on a GPU.
    """
    q = q.contiguous()
    out = torch.empty_like(q) if out is None else out
    kernel[(len(q), k_cache.shape[1])](
        q, k_cache, v_cache, block_tables, seq_lens, out, scale * LOG2_E, block_tables.stride(0),
        **_constants(q, k_cache, block_n), **options,
    )  # fmt: skip
    return out


def launch_paged_decode_split(
    kernel: Any,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    num_splits: int,
    *,
    partial: Tensor | None = None,
    lse: Tensor | None = None,
    block_n: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same with a program per (sequence, KV head, split).

    Returns:
        partial: fp32 [B, H, splits, D], attention over the keys of each split.
        lse: fp32 [B, H, splits], log-sum-exp of their scores, base 2.
    """
    q = q.contiguous()
    num_sequences, num_heads, head_dim = q.shape
    if partial is None or lse is None:
        partial = torch.empty(num_sequences, num_heads, num_splits, head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(num_sequences, num_heads, num_splits, dtype=torch.float32, device=q.device)
    kernel[(num_sequences, k_cache.shape[1], num_splits)](
        q, k_cache, v_cache, block_tables, seq_lens, partial, lse, scale * LOG2_E, block_tables.stride(0),
        **_constants(q, k_cache, block_n),
    )  # fmt: skip
    return partial, lse


def _constants(q: Tensor, k_cache: Tensor, block_n: int | None) -> dict[str, int]:
    """Arguments that a kernel is compiled for."""
    (_, num_heads, head_dim), (_, num_kv_heads, page, _) = q.shape, k_cache.shape
    group = num_heads // num_kv_heads
    keys_that_fit = 64 if head_dim * k_cache.element_size() <= 256 else 16  # into a program's registers, without spills
    return {
        "H": num_heads, "H_KV": num_kv_heads, "D": head_dim, "PAGE": page, "BLOCK_N": block_n or keys_that_fit,
        # `tl.dot` wants at least 16 rows and a power of two, however few heads there are.
        "BLOCK_M": max(16, next_power_of_2(group)), "BLOCK_D": max(16, next_power_of_2(head_dim)),
    }  # fmt: skip
