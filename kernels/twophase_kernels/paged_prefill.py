"""Causal attention of a ragged batch of prompt chunks over a paged K/V cache that already holds their K and V.

Prefill reuses each key for many queries: operations are the limit, so tiles are as large as registers allow and
everything that is not a matrix product is kept out of the inner loop.

- The rows of a tile are BLOCK_Q consecutive tokens times the G heads that share a KV head: row r is token r // G,
  head r % G. Each K and V tile is loaded once for all of them.
- Chunks differ in length and are not padded. Sequence s owns cu_query_lens[s] // BLOCK_Q + s and the following
  programs, at least as many as it needs; a program finds its sequence by binary search over that ascending list.
- Most tiles lie wholly below the diagonal; the loop over them applies no mask.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import next_power_of_2, tl, triton
from twophase_kernels.attend_range import (
    LOG2_E,
    KeyLayout,
    Queries,
    Tiles,
    attend_range,
    finish_softmax,
    kernel_kv_format,
    keys_of_head,
    padded_head_dim,
    start_softmax,
)
from twophase_kernels.gpu import Generation, gpu_generation
from twophase_kernels.paged_inputs import check_paged_inputs
from twophase_kernels.quant import KVFormat


@triton.jit
def find_sequence(cu_query_lens_ptr, block, num_seqs, BLOCK_Q: tl.constexpr):
    """The last sequence whose first tile of queries, cu_query_lens[s] // BLOCK_Q + s, is not after `block`."""
    first = 0
    end = num_seqs
    while end - first > 1:
        middle = (first + end) // 2
        starts_before = tl.load(cu_query_lens_ptr + middle) // BLOCK_Q + middle <= block
        first = tl.where(starts_before, middle, first)
        end = tl.where(starts_before, end, middle)
    return first


# Values that vary from step to step must not be specialised (see paged_decode).
@triton.jit(
    do_not_specialize=["table_row_stride", "num_seqs"],
    do_not_specialize_on_alignment=["block_tables_ptr", "seq_lens_ptr", "cu_query_lens_ptr", "lse_ptr"],
)
def paged_prefill_kernel(
    q_ptr,  # [T, H, D], rows q_row_stride apart
    k_ptr,  # [N, H_KV, PAGE, D]; int8, or uint8 with e4m3 bits, when quantised
    v_ptr,  # like k_ptr
    k_scale_ptr,  # fp32 [N, H_KV, PAGE]; None unless quantised
    v_scale_ptr,  # like k_scale_ptr
    block_tables_ptr,  # int32 [S, W]
    seq_lens_ptr,  # int32 [S]
    cu_query_lens_ptr,  # int32 [S + 1]
    out_ptr,  # [T, H, D]
    lse_ptr,  # fp32 [T, H] or None
    qk_scale,  # score scale * log2(e)
    q_row_stride,
    table_row_stride,
    num_seqs,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    NUM_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_Q tokens of one chunk and the G query heads of one KV head, over all keys they see."""
    G: tl.constexpr = H // H_KV
    BLOCK_Q: tl.constexpr = BLOCK_M // G
    # Programs start in order of their number. The last blocks of a chunk see the most keys: started first, they don't
    # leave the GPU waiting for one straggler at the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(cu_query_lens_ptr, block, num_seqs, BLOCK_Q)
    chunk_start = tl.load(cu_query_lens_ptr + sequence)
    chunk_len = tl.load(cu_query_lens_ptr + sequence + 1) - chunk_start
    first_token = (block - (chunk_start // BLOCK_Q + sequence)) * BLOCK_Q
    if first_token >= chunk_len:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    num_cached = seq_len - chunk_len  # tokens before this chunk

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    tokens = offs_m // G  # counted from first_token
    heads = kv_head * G + offs_m % G
    mask_m = (offs_m < BLOCK_Q * G) & (first_token + tokens < chunk_len)
    mask_q = mask_m[:, None] & (offs_d < D)[None, :]
    # int64 for where the block starts, once; 32 bits are enough inside it, and registers are short.
    first_row = (chunk_start + first_token).to(tl.int64)
    q_ptr += first_row * q_row_stride
    q = tl.load(q_ptr + (tokens * q_row_stride + heads * D)[:, None] + offs_d[None, :], mask=mask_q, other=0.0)
    row_positions = num_cached + first_token + tokens

    # Keys in [lo, hi) are seen by some row. Tiles (counted from lo) in [full_lo, full_hi) are seen whole by every row:
    # they end before the first row's position and begin after the start of the last row's window.
    first_position = num_cached + first_token
    hi = tl.minimum(first_position + BLOCK_Q, seq_len)
    lo = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW > 0 else 0
    full_hi = lo + (first_position + 1 - lo) // BLOCK_N * BLOCK_N
    full_lo = lo
    if WINDOW > 0:
        full_lo = tl.minimum(lo + tl.cdiv(tl.maximum(hi - WINDOW - lo, 0), BLOCK_N) * BLOCK_N, full_hi)

    table_ptr = block_tables_ptr + sequence.to(tl.int64) * table_row_stride
    layout: tl.constexpr = KeyLayout(H_KV, PAGE, D, BLOCK_D, BLOCK_N, KV_FORMAT, PAIRS="no")
    keys = keys_of_head(kv_head, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, layout)
    queries = Queries((q,), row_positions, qk_scale)
    state = start_softmax(BLOCK_M, layout)
    if WINDOW > 0 and NUM_SINKS > 0:
        # Sinks before lo; the masks of the tiles below let later sinks through.
        state = attend_range(queries, keys, layout, state, 0, tl.minimum(NUM_SINKS, lo))
    if WINDOW > 0:
        state = attend_range(queries, keys, layout, state, lo, full_lo, WINDOW, NUM_SINKS)
    state = attend_range(queries, keys, layout, state, full_lo, full_hi, MASKED=False)
    state = attend_range(queries, keys, layout, state, full_hi, hi, WINDOW, NUM_SINKS)

    out, lse = finish_softmax(state, layout)
    offs_row = tokens * H + heads
    out_ptr += first_row * (H * D)
    tl.store(out_ptr + offs_row[:, None] * D + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask_q)
    if lse_ptr is not None:
        tl.store(lse_ptr + first_row * H + offs_row, lse, mask=mask_m)


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    *,
    max_query_len: int,
    scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    num_sinks: int = 0,
    out: Tensor | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of each sequence's last tokens, a chunk of any length, over its pages. Does not wait for the device.

    Args:
        q: [T, H, D], the chunks one after another; rows may be views of a wider tensor.
        k_cache, v_cache, block_tables, seq_lens: As for `paged_decode`; they have the chunks' own K, V and tokens.
        cu_query_lens: int32 [S + 1]: chunk s is q[cu_query_lens[s]:cu_query_lens[s + 1]], the last tokens of its
            sequence; it may be empty. Rows of q from cu_query_lens[S] on are unused and not written.
        max_query_len: The longest chunk, or more; it chooses the tile.
        scale, k_scale, v_scale, window, num_sinks, out, return_lse: As for `paged_decode`.
        tiles: Instead of `prefill_tiles`, for experiments.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    kv_format, num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, page, out, lse = check_paged_inputs(
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, k_scale=k_scale, v_scale=v_scale, scale=scale,
        window=window, num_sinks=num_sinks, out=out, return_lse=return_lse,
    )  # fmt: skip
    group = num_heads // num_kv_heads
    generation = gpu_generation(q.device)
    if tiles is None:
        tiles = prefill_tiles(group, head_dim, q.dtype, kv_format, window is not None, max_query_len, generation)
    if tiles.block_m < group:
        raise ValueError(f"block_m must hold the {group} heads of one token, got {tiles.block_m}.")
    if num_tokens and num_seqs:
        # A chunk of c tokens needs at most c // BLOCK_Q + 1 blocks, so the host needs no lengths.
        num_blocks = num_tokens // (tiles.block_m // group) + num_seqs
        paged_prefill_kernel[(num_blocks, num_kv_heads)](
            q, k_cache, v_cache, k_scale, v_scale, block_tables, seq_lens, cu_query_lens, out, lse,
            scale * LOG2_E, q.stride(0), block_tables.stride(0), num_seqs,
            H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page, KV_FORMAT=kernel_kv_format(kv_format, generation),
            WINDOW=window or 0, NUM_SINKS=num_sinks,
            BLOCK_M=tiles.block_m, BLOCK_D=padded_head_dim(head_dim), BLOCK_N=tiles.block_n,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, **compiler_options(generation),
        )  # fmt: skip
    return (out, lse) if return_lse else out


def compiler_options(generation: Generation) -> dict[str, int]:
    """For sm_100, ptxas spills rather than use more than 128 registers at D=64; told the true limit, it does not."""
    return {"maxnreg": 255} if generation == "hopper" else {}


def prefill_tiles(
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    kv_format: KVFormat,
    has_window: bool,
    max_query_len: int,
    generation: Generation,
) -> Tiles:
    """The tile table of prefill. Few rows (a short chunk) take a small tile: less of it is idle.

    Its figures were chosen for code without spills. On an H200, of 13 tiles tried for 16-bit heads of 128, that of 128
    rows and 128 keys was the fastest for a prompt of 16,384 tokens, and at most 5 % behind for 1,024 and 4,096.
    """
    num_rows = max_query_len * group
    at_least = next_power_of_2(group)
    block_m = max(at_least, 16 if num_rows <= 16 else 64 if num_rows <= 64 else 128)
    short_block_m = max(at_least, min(block_m, 64))
    block_d = padded_head_dim(head_dim)
    if generation == "cpu":  # a tile of scores that stays in the first cache
        return Tiles(short_block_m, 64, num_warps=1, num_stages=1)
    if dtype == torch.float32:  # no matrix units: registers are the limit
        return Tiles(max(32, at_least), 16 if block_d > 128 else 32, num_warps=8, num_stages=3)
    is_quantised = kv_format != "none"
    if generation == "cdna":  # 64 KiB of LDS for two tiles of K and V; 4 warps have 512 registers per lane
        if block_d > 128:
            return Tiles(short_block_m, 16, 4, 3)
        return Tiles(short_block_m if is_quantised and block_d > 64 else block_m, 32, 4, 3)
    if generation == "hopper" and not (is_quantised and block_d > 128):
        # 64 rows per 4 warps are one wgmma; 128 rows on 4 warps spill. With 128 keys to a tile a warp issues a fifth
        # fewer instructions per key. They take all registers and shared memory of a multiprocessor: at D=64, where two
        # programs with 64 keys share it, and one can do its softmax during the other's products, they are not taken.
        # Quantised caches spill with them, and on sm_100 windows; tiles of D=256 don't fit.
        if block_m == 128 and block_d == 128 and not is_quantised and not has_window:
            return Tiles(block_m, 128, num_warps=8, num_stages=3)
        return Tiles(block_m, 32 if block_d > 128 else 64, num_warps=8 if block_m >= 128 else 4, num_stages=3)
    # mma.sync keeps Q in registers, beside which decoded tiles find room only if few rows share a warp.
    if block_d > 128 or (is_quantised and block_d > 64):
        # Cards other than an A100 have 99 KiB for Q and two tiles of K and V: 32 keys of 512 bytes are too many.
        return Tiles(short_block_m, 32 if is_quantised or block_d <= 128 else 16, num_warps=8, num_stages=3)
    # At D=128 registers hold 64 keys only if nothing else needs them: no window, and a row's token and head found by
    # shifting, not dividing.
    has_room = block_d <= 64 or (not has_window and group == at_least)
    return Tiles(block_m, 64 if has_room else 32, num_warps=8 if block_m > 16 else 4, num_stages=3)
