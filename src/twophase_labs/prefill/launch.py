"""Launchers of the teaching kernels. They check nothing: they allocate, choose the grid and the tiles, and launch.

A kernel is launched over a grid: so many programs, each with its own number. Interpreted, a step over a tile costs
about the same whatever the tile's size, so tiles are large there; compiled, registers set their size.
"""

from typing import Any

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2
from twophase_labs.machine.kernels import device, tl, triton

LOG2_E = 1.4426950408889634
IS_INTERPRETED = device.type == "cpu"
BLOCK_M, BLOCK_N = (128, 256) if IS_INTERPRETED else (32, 32)  # query rows of a program, keys of a tile


def padded(n: int) -> int:
    """`tl.arange` wants a power of two, `tl.dot` at least 16."""
    return max(16, next_power_of_2(n))


@triton.jit
def tile_loop_kernel(
    q_ptr,  # [M, D]
    k_ptr,  # [S, D]
    v_ptr,  # [S, D]
    row_positions_ptr,  # int32 [M]: row m sees keys [0, row_positions[m]]
    row_max_ptr,  # fp32 [M]
    row_sum_ptr,  # fp32 [M]
    acc_ptr,  # fp32 [M, D]
    qk_scale,  # score scale * log2(e)
    num_keys,
    M: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP: tl.constexpr,  # a function: folds one tile into the state
):
    """One program: M query rows over keys [0, num_keys), a tile of BLOCK_N at a time; stores the state it ends with."""
    offs_m = tl.arange(0, M)
    offs_d = tl.arange(0, D)
    offs_q = offs_m[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q)
    row_positions = tl.load(row_positions_ptr + offs_m)
    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in tl.range(0, num_keys, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < num_keys
        offs_kv = positions[:, None] * D + offs_d[None, :]
        k = tl.load(k_ptr + offs_kv, mask=in_range[:, None], other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=in_range[:, None], other=0.0)
        visible = in_range[None, :] & (positions[None, :] <= row_positions[:, None])
        row_max, row_sum, acc = STEP(q, k, v, visible, qk_scale, row_max, row_sum, acc)
    tl.store(row_max_ptr + offs_m, row_max)
    tl.store(row_sum_ptr + offs_m, row_sum)
    tl.store(acc_ptr + offs_q, acc)


def launch_attend_tile(
    step: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_positions: Tensor,
    scale: int | float,
    *,
    block_n: int = 16,
    row_max: Tensor | None = None,
    row_sum: Tensor | None = None,
    acc: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`tile_loop_kernel` with a learner's `attend_tile` as its step: the state (row_max, row_sum, acc) it ends with.

    q [M, D], k and v [S, D]; M, D and block_n are powers of two, at least 16.
    """
    num_rows, head_dim = q.shape
    if row_max is None or row_sum is None or acc is None:
        row_max, row_sum = (torch.empty(num_rows, device=q.device) for _ in range(2))
        acc = torch.empty(num_rows, head_dim, device=q.device)
    tile_loop_kernel[(1,)](
        q, k, v, row_positions, row_max, row_sum, acc, scale * LOG2_E, len(k),
        M=num_rows, D=head_dim, BLOCK_N=block_n, STEP=step,
    )  # fmt: skip
    return row_max, row_sum, acc


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
