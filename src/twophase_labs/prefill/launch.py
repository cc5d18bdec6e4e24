"""Launchers of the teaching kernels. They check nothing: they allocate, choose the grid and the tiles, and launch.

A kernel is launched over a grid: so many programs, each with its own number. A GPU's registers set the size of a tile;
on a CPU tiles of the same size are the fastest, too.
"""

from typing import Any

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2

LOG2_E = 1.4426950408889634
BLOCK_M, BLOCK_N = 32, 32  # query rows of a program, keys of a tile


def padded(n: int) -> int:
    """`tl.arange` wants a power of two, `tl.dot` at least 16."""
    return max(16, next_power_of_2(n))


def launch_flash_attention(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: int | float,
    *,
    block_m: int = BLOCK_M,
    block_n: int = BLOCK_N,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [L, D], LSE base 2 fp32 [L]) of one causal head, q, k and v contiguous [L, D]; a program per query tile."""
    length, head_dim = q.shape
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(length, device=q.device) if lse is None else lse
    kernel[(cdiv(length, block_m),)](
        q, k, v, out, lse, scale * LOG2_E, length,
        D=head_dim, BLOCK_M=block_m, BLOCK_D=padded(head_dim), BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse


def launch_paged_prefill(
    kernel: Any,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    scale: int | float,
    *,
    block_m: int = BLOCK_M,
    block_n: int = BLOCK_N,
    max_query_len: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [T, H, D], LSE base 2 fp32 [T, H]); rows that belong to no chunk are left as they are.

    The grid has a program per query block of the longest chunk, per sequence, and per KV head. `max_query_len` is
    looked up unless it is given, which waits for the device.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, page = k_cache.shape[1:3]
    block_q = block_m // (num_heads // num_kv_heads)
    longest = int(cu_query_lens.diff().max()) if max_query_len is None else max_query_len
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:2], device=q.device) if lse is None else lse
    kernel[(cdiv(longest, block_q), len(seq_lens), num_kv_heads)](
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, out, lse,
        scale * LOG2_E, block_tables.stride(0),
        H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page,
        BLOCK_M=block_m, BLOCK_D=padded(head_dim), BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse


def launch_kv_write(kernel: Any, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store k[t] and v[t] (contiguous [T, H_kv, D]) at slot_mapping[t] (int64 [T]); a program per token."""
    num_tokens, num_kv_heads, head_dim = k.shape
    kernel[(num_tokens,)](
        k, v, k_cache, v_cache, slot_mapping,
        H_KV=num_kv_heads, D=head_dim, PAGE=k_cache.shape[2],
        BLOCK_H=next_power_of_2(num_kv_heads), BLOCK_D=next_power_of_2(head_dim),
    )  # fmt: skip


def launch_add_rmsnorm(
    kernel: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: int | float
) -> tuple[Tensor, Tensor]:
    """(y, h), both like x [T, N]: h = x + residual, y = h / sqrt(mean(h^2) + eps) * weight; a program per row."""
    num_rows, width = x.shape
    y, h = torch.empty_like(x), torch.empty_like(x)
    kernel[(num_rows,)](x, residual, weight, y, h, eps, N=width, BLOCK_N=next_power_of_2(width))
    return y, h
