"""Attention of one new token per sequence over a paged K/V cache, split over the keys when the batch is small.

Decode reads every key and value once and does 4 operations per byte or so per query head: memory is the limit, and
what counts is that enough programs have enough loads in flight.

- A program takes all G query heads of a group, so K and V are read once for the whole group. The heads are the rows
  of a matrix tile of at least 16; most may be empty, as matrix units idle anyway.
- B * H_kv programs do not fill a GPU when the batch is small, so each sequence's keys are split over several
  programs (FlashDecoding), and `merge_splits` combines their results.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2, tl, triton
from twophase_kernels.attend_range import (
    LOG2_E,
    KeyLayout,
    Queries,
    Tiles,
    attend_range,
    attention_reference,
    finish_softmax,
    kernel_kv_format,
    keys_of_head,
    padded_head_dim,
    start_softmax,
)
from twophase_kernels.code_pairs import pair_decoder, split_columns, to_fp16
from twophase_kernels.gpu import Generation, gpu_generation, num_multiprocessors
from twophase_kernels.merge_splits import launch_merge
from twophase_kernels.paged_inputs import check_out, check_paged_inputs
from twophase_kernels.quant import KVFormat

DETERMINISTIC_CHUNK = 512
MAX_SPLITS = 128
# Two tiles: their loads are in flight together, so a second one costs little time and saves half the merging.
MIN_TOKENS_PER_SPLIT = 128


# What varies from step to step must not be baked into binaries: eight (batch, table width) pairs once made six. out_ptr
# is among it for another reason: wide stores of so few rows need another layout, 30 registers, and on sm_80 spills.
@triton.jit(
    do_not_specialize=["table_row_stride"],
    do_not_specialize_on_alignment=["block_tables_ptr", "seq_lens_ptr", "out_ptr", "lse_ptr"],
)
def paged_decode_kernel(
    q_ptr,  # [B, H, D], rows q_row_stride apart
    k_ptr,  # [N, H_KV, PAGE, D]; int8, or uint8 with e4m3 bits, when quantised
    v_ptr,  # like k_ptr
    k_scale_ptr,  # fp32 [N, H_KV, PAGE]; None unless quantised
    v_scale_ptr,  # like k_scale_ptr
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B]
    out_ptr,  # [B, H, splits, D]
    lse_ptr,  # fp32 [B, H, splits] or None
    qk_scale,  # score scale * log2(e)
    q_row_stride,
    table_row_stride,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    PAIRS: tl.constexpr,  # 'no', or how two codes at a time are decoded
    WINDOW: tl.constexpr,  # 0: none
    NUM_SINKS: tl.constexpr,
    CHUNK: tl.constexpr,  # keys per split, a multiple of BLOCK_N; 0: an even share of this sequence's
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: the G query heads of one KV head, of one sequence, over one split of its keys."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    G: tl.constexpr = H // H_KV

    # Keys this token sees: [0, num_sinks) and [lo, seq_len). Splits share out the second range, in whole tiles.
    seq_len = tl.load(seq_lens_ptr + sequence)
    lo = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    split_len = CHUNK if CHUNK > 0 else tl.cdiv(tl.cdiv(seq_len - lo, BLOCK_N), num_splits) * BLOCK_N
    split_lo = lo + split * split_len
    split_hi = tl.minimum(split_lo + split_len, seq_len)
    # The last split takes what is left, so that a wrong bound on the lengths costs time but no tokens.
    split_hi = tl.where(split == num_splits - 1, seq_len, split_hi)

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]
    heads = kv_head * G + offs_m
    q_row = q_ptr + sequence.to(tl.int64) * q_row_stride
    q = tl.load(q_row + heads[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    row_positions = tl.zeros([BLOCK_M], tl.int32) + (seq_len - 1)

    table_ptr = block_tables_ptr + sequence.to(tl.int64) * table_row_stride
    layout: tl.constexpr = KeyLayout(H_KV, PAGE, D, BLOCK_D, BLOCK_N, KV_FORMAT, PAIRS)
    keys = keys_of_head(kv_head, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, layout)
    if PAIRS == "no":
        queries = Queries((q,), row_positions, qk_scale)
    else:
        q, q_unit = to_fp16(q)
        queries = Queries(split_columns(q, BLOCK_M, BLOCK_D), row_positions, qk_scale * q_unit)
    state = start_softmax(BLOCK_M, layout)
    if WINDOW > 0 and NUM_SINKS > 0:
        # The first split takes the sinks too; those inside the window are not counted twice.
        sinks_hi = tl.where(split == 0, tl.minimum(NUM_SINKS, lo), 0)
        state = attend_range(queries, keys, layout, state, 0, sinks_hi)
    state = attend_range(queries, keys, layout, state, split_lo, split_hi)

    # A split without keys stores 0 and -inf, and so does a sequence of length 0.
    out, lse = finish_softmax(state, layout)
    row = (sequence.to(tl.int64) * H + heads) * num_splits + split
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask_q)
    if lse_ptr is not None:
        tl.store(lse_ptr + row, lse, mask=offs_m < G)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    num_sinks: int = 0,
    max_seq_len: int | None = None,
    num_splits: int | None = None,
    deterministic: bool = False,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of each sequence's last token over its pages. Does not wait for the device.

    Args:
        q: [B, H, D]; rows may be views of a wider tensor.
        k_cache, v_cache: [N, H_kv, page, D] contiguous; int8, or uint8 with e4m3 bits, with scales.
        block_tables: int32 [B, W], W a multiple of 16, padded with any valid page.
        seq_lens: int32 [B], the new token included; 0 (graph padding) gives zeros and LSE -inf.
        scale: Factor on Q.K, as a rule 1 / sqrt(D).
        k_scale, v_scale: fp32 [N, H_kv, page], one per token and head, for quantised caches.
        window: Keys at positions [seq_len - window, seq_len) are seen; None: all.
        num_sinks: Keys at positions [0, num_sinks) are seen besides the window.
        max_seq_len: At least the largest of seq_lens, which lies on the device; by default what the tables have
            room for. It only chooses the number of splits; too small a bound makes the last split long.
        num_splits: Programs that share one sequence's keys; by default `choose_num_splits`.
        deterministic: Split into fixed chunks of 512 keys instead, so that a sequence's result is bitwise the same
            whatever else is in the batch.
        out: [B, H, D] to write to, contiguous.
        workspace: fp32, at least `workspace_numel` long, for partial results. With `out` and this, nothing is
            allocated.
        return_lse: Also return the log-sum-exp of the scores, fp32 [B, H], base 2.
        tiles: Instead of `decode_tiles`, for experiments.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    kv_format = check_paged_inputs(
        q, k_cache, v_cache, block_tables, seq_lens, k_scale, v_scale, scale, window, num_sinks
    )
    batch_size, num_heads, head_dim = q.shape
    if batch_size != len(seq_lens):
        raise ValueError(f"Decode takes one query per sequence, got {batch_size} and {len(seq_lens)} sequences.")
    _, num_kv_heads, page, _ = k_cache.shape
    generation = gpu_generation(q.device)
    if tiles is None:
        tiles = decode_tiles(num_heads // num_kv_heads, head_dim, q.dtype, kv_format, generation)
    pairs = pair_decoder(kv_format, q.dtype, head_dim, generation)
    kernel_format = kernel_kv_format(kv_format, generation) if pairs == "no" else kv_format
    num_keys = min(max_seq_len or block_tables.shape[1] * page, window or block_tables.shape[1] * page)
    if deterministic:
        if num_splits is not None:
            raise ValueError(f"deterministic=True fixes the splits; leave out num_splits (got {num_splits}).")
        num_splits = cdiv(num_keys, DETERMINISTIC_CHUNK)
    elif num_splits is None:
        num_splits = choose_num_splits(batch_size, num_kv_heads, num_keys, num_multiprocessors(q.device))
    if num_splits < 1:
        raise ValueError(f"num_splits must be at least 1, got {num_splits}.")
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    check_out("out", out, (batch_size, num_heads, head_dim), q.dtype, q.device)
    lse = torch.empty(batch_size, num_heads, dtype=torch.float32, device=q.device) if return_lse else None
    target, target_lse = out, lse
    if num_splits > 1:
        target, target_lse = _partials(workspace, batch_size, num_heads, head_dim, num_splits, q.device)
    if batch_size:
        paged_decode_kernel[(batch_size, num_kv_heads, num_splits)](
            q, k_cache, v_cache, k_scale, v_scale, block_tables, seq_lens, target, target_lse,
            scale * LOG2_E, q.stride(0), block_tables.stride(0),
            H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page, KV_FORMAT=kernel_format, PAIRS=pairs,
            WINDOW=window or 0, NUM_SINKS=num_sinks, CHUNK=DETERMINISTIC_CHUNK if deterministic else 0,
            BLOCK_M=tiles.block_m, BLOCK_D=padded_head_dim(head_dim), BLOCK_N=tiles.block_n,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
        if num_splits > 1:
            launch_merge(target, target_lse, out, lse, num_splits)
    return (out, lse) if return_lse else out


def choose_num_splits(batch_size: int, num_kv_heads: int, num_keys: int, num_sms: int) -> int:
    """Splits of each sequence, from shapes alone so that no length has to be fetched from the device.

    One where the batch fills the GPU twice over: splitting costs a merge. Otherwise four programs per SM, rounded down
    to a power of two, as long as each has work for two tiles.
    """
    num_programs = max(1, batch_size * num_kv_heads)
    if num_programs >= 2 * num_sms:
        return 1
    wanted = next_power_of_2(4 * num_sms // num_programs + 1) // 2
    return max(1, min(wanted, cdiv(num_keys, MIN_TOKENS_PER_SPLIT), MAX_SPLITS))


def decode_tiles(group: int, head_dim: int, dtype: torch.dtype, kv_format: KVFormat, generation: Generation) -> Tiles:
    """The tile table of decode. Its figures were chosen by what compiles without spills, not yet by measured time."""
    block_m = max(16, next_power_of_2(group))
    if generation == "interpreter":
        return Tiles(block_m, 256, num_warps=4, num_stages=1)  # a tile costs the same whatever its size
    if generation == "cdna":
        return Tiles(block_m, 32, num_warps=4, num_stages=3)  # two tiles of K and V in 64 KiB of LDS
    block_n = 64 if kv_format == "none" else 128
    if dtype == torch.float32:
        block_n //= 2  # the same bytes in flight per tile, and registers for fewer scores
    if padded_head_dim(head_dim) > 128:
        block_n //= 2
    return Tiles(block_m, block_n, num_warps=4, num_stages=3)


def workspace_numel(batch_size: int, num_heads: int, head_dim: int, num_splits: int) -> int:
    """Length of the fp32 workspace that holds every split's output and LSE."""
    return batch_size * num_heads * num_splits * (head_dim + 1)


def _partials(
    workspace: Tensor | None, batch_size: int, num_heads: int, head_dim: int, num_splits: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Views of the workspace: outputs [B, H, splits, D] and LSEs [B, H, splits], flat."""
    numel = workspace_numel(batch_size, num_heads, head_dim, num_splits)
    if workspace is None:
        workspace = torch.empty(numel, dtype=torch.float32, device=device)
    if workspace.numel() < numel:
        raise ValueError(
            f"workspace must have at least {numel} elements for {num_splits} splits, got {len(workspace)}."
        )
    check_out("workspace", workspace, (workspace.numel(),), torch.float32, device)
    return workspace, workspace[batch_size * num_heads * num_splits * head_dim :]


def paged_decode_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    num_sinks: int = 0,
    max_seq_len: int | None = None,
    num_splits: int | None = None,
    deterministic: bool = False,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """What `paged_decode` computes, sequence by sequence in plain torch; how it splits makes no difference here."""
    results = [
        attention_reference(
            q[s : s + 1], k_cache, v_cache, block_tables[s], seq_len,
            scale=scale, k_scale=k_scale, v_scale=v_scale, window=window, num_sinks=num_sinks,
        )
        for s, seq_len in enumerate(seq_lens.tolist())
    ]  # fmt: skip
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    out.copy_(torch.cat([result for result, _ in results]))
    return (out, torch.cat([lse for _, lse in results])) if return_lse else out
