"""Attention of each sequence's new token, or its last few, over a paged K/V cache, split over the keys.

Decode reads every key and value once and does 4 operations per byte or so per query head: memory is the limit, so
enough programs must have enough loads in flight.

- A program takes all G query heads of a group, so K and V are read once for the whole group. The heads are the rows
  of a matrix tile of at least 16; most may be empty, as matrix units idle anyway.
- Drafts are verified in the same way: with `cu_query_lens` a sequence has as many tokens as the tile has room for, and
  row r is token r // G, head r % G, as in `paged_prefill`, which takes longer ones and splits no keys.
- B * H_kv programs do not fill a GPU when the batch is small, so each sequence's keys are split over several
  programs (FlashDecoding), and `merge_splits` combines their results.
- A large batch is split by length, or one sequence of 32K tokens among short ones would be one program's work long
  after the others have ended. Lengths lie on the device and a CUDA graph's grid is fixed, so:

  1. The grid has 2 B items, and a chunk has c keys, the batch's mean length (or a little more: whole tiles, and at
     least MIN_TOKENS_PER_CHUNK). A sequence of n keys has max(1, ceil(n / c)) chunks, at most 1 + n / c; together they
     are at most B + B. Equal lengths are not split, and no program has more than c keys.
  2. A program reads all lengths twice, in blocks of a fixed size (else each batch size would need a binary): for their
     mean, and for the running sum of chunks, in which it finds its own. Items at the end of the list find none.
  3. A sequence's only chunk writes the result. Others write partial results, [item, tokens, H, D], and the first of
    them where they begin and how many they are, for the merge; the merge skips other sequences.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, new_workspace, next_power_of_2, tl, triton
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
from twophase_kernels.code_pairs import pair_decoder, split_columns, to_fp16
from twophase_kernels.gpu import Generation, gpu_generation, num_multiprocessors
from twophase_kernels.merge_splits import merge_splits
from twophase_kernels.paged_inputs import check_paged_inputs
from twophase_kernels.quant import KVFormat

DETERMINISTIC_CHUNK = 512
MAX_SPLITS = 128
PROGRAMS_PER_SM = 2  # with 4 an H200 takes up to a quarter longer (one sequence of 8,192 keys: 22 us, not 17)
# Two tiles: their loads are in flight together, so a second one costs little time and saves half the merging.
MIN_TOKENS_PER_SPLIT = 128
MIN_TOKENS_PER_CHUNK = 512  # of a batch that fills the GPU without splits
MAX_ROWS = 64  # of a tile for several tokens; heads of more than 128 have room for half
LENGTHS_PER_STEP = tl.constexpr(128)


@triton.jit
def load_visible(seq_lens_ptr, offs, num_seqs, WINDOW: tl.constexpr):
    """Keys of the range that is split, of each sequence (or more, see SPAN below); 0 from num_seqs on."""
    lens = tl.load(seq_lens_ptr + offs, mask=offs < num_seqs, other=0)
    return tl.minimum(lens, WINDOW) if WINDOW > 0 else lens


@triton.jit
def find_chunk(seq_lens_ptr, num_seqs, item, WINDOW: tl.constexpr, MIN_CHUNK: tl.constexpr, BLOCK_N: tl.constexpr):
    """(sequence, its first item, keys per chunk) of an item of the work list; num_seqs: the list has no such item."""
    offs = tl.arange(0, LENGTHS_PER_STEP)
    total = tl.full([], 0, tl.int64)
    for start in range(0, num_seqs, LENGTHS_PER_STEP):
        total += tl.sum(load_visible(seq_lens_ptr, start + offs, num_seqs, WINDOW).to(tl.int64), axis=0)
    mean = tl.cdiv(total, num_seqs).to(tl.int32)
    chunk_len = tl.cdiv(tl.maximum(mean, MIN_CHUNK), BLOCK_N) * BLOCK_N

    sequence = tl.full([], 0, tl.int32)
    first_item = tl.full([], 0, tl.int32)
    num_items = tl.full([], 0, tl.int32)  # of the sequences looked at
    for start in range(0, num_seqs, LENGTHS_PER_STEP):
        lens = load_visible(seq_lens_ptr, start + offs, num_seqs, WINDOW)
        num_chunks = tl.where(start + offs < num_seqs, tl.maximum(tl.cdiv(lens, chunk_len), 1), 0)
        ends = num_items + tl.cumsum(num_chunks, axis=0)
        is_before = (ends <= item) & (start + offs < num_seqs)
        sequence += tl.sum(is_before.to(tl.int32), axis=0)
        first_item += tl.sum(tl.where(is_before, num_chunks, 0), axis=0)
        num_items += tl.sum(num_chunks, axis=0)
    return sequence, first_item, chunk_len


# Values that vary from step to step must not be specialised: eight (batch, table width) pairs once made six binaries.
# out_ptr has another reason: wide stores of these few rows need another layout, 30 registers, and on sm_80 spills.
@triton.jit(
    do_not_specialize=["table_row_stride", "num_seqs"],
    do_not_specialize_on_alignment=["block_tables_ptr", "seq_lens_ptr", "cu_query_lens_ptr", "out_ptr", "lse_ptr"],
)
def paged_decode_kernel(
    q_ptr,  # [T, H, D], rows q_row_stride apart
    k_ptr,  # [N, H_KV, PAGE, D]; int8, or uint8 with e4m3 bits, when quantised
    v_ptr,  # like k_ptr
    k_scale_ptr,  # fp32 [N, H_KV, PAGE]; None unless quantised
    v_scale_ptr,  # like k_scale_ptr
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B]
    cu_query_lens_ptr,  # int32 [B + 1]: sequence s has tokens [cu[s], cu[s + 1]), at most TOKENS; None: one each, T = B
    out_ptr,  # [T, H, D]; of several splits, not by length, partial results [B, TOKENS, H, splits, D]
    lse_ptr,  # fp32 like out_ptr without D, or None
    partial_ptr,  # split by length: fp32 [items, TOKENS, H, D], for sequences of several chunks; else None
    partial_lse_ptr,  # likewise, fp32 [items, TOKENS, H]
    chunks_ptr,  # likewise, int32 [B, 2]: each sequence's first item and number of chunks
    qk_scale,  # score scale * log2(e)
    q_row_stride,
    table_row_stride,
    num_seqs,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    PAIRS: tl.constexpr,  # 'no', or how two codes at a time are decoded
    WINDOW: tl.constexpr,  # 0: none
    NUM_SINKS: tl.constexpr,
    CHUNK: tl.constexpr,  # keys per split, by length at least; 0: an even share of this sequence's
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: the G query heads of one KV head, of one sequence's tokens, over one split of its keys."""
    G: tl.constexpr = H // H_KV
    BY_LENGTH: tl.constexpr = partial_ptr is not None
    SEVERAL: tl.constexpr = cu_query_lens_ptr is not None
    TOKENS: tl.constexpr = BLOCK_M // G if SEVERAL else 1
    # Keys covered by the windows of TOKENS tokens: the same bound for every sequence, so that items and splits are
    # counted alike. A sequence with fewer tokens may get a split without keys.
    SPAN: tl.constexpr = WINDOW + TOKENS - 1 if WINDOW > 0 else 0
    # Heads first: their keys lie side by side in a page, and neighbouring programs read them at once, or in turn.
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    if BY_LENGTH:
        item = tl.program_id(1)
        sequence, first_item, split_len = find_chunk(seq_lens_ptr, num_seqs, item, SPAN, CHUNK, BLOCK_N)
        if sequence >= num_seqs:
            return
        split = item - first_item

    first_token, num_tokens = sequence, 1
    if SEVERAL:
        first_token = tl.load(cu_query_lens_ptr + sequence)
        num_tokens = tl.load(cu_query_lens_ptr + sequence + 1) - first_token

    # Keys these tokens see: [0, num_sinks) and [lo, seq_len). Splits share out the second range, in whole tiles.
    seq_len = tl.load(seq_lens_ptr + sequence)
    lo = tl.maximum(seq_len - (WINDOW + num_tokens - 1), 0) if WINDOW > 0 else 0
    if BY_LENGTH:
        visible = tl.minimum(seq_len, SPAN) if WINDOW > 0 else seq_len
        num_splits = tl.maximum(tl.cdiv(visible, split_len), 1)
    else:
        split_len = CHUNK if CHUNK > 0 else tl.cdiv(tl.cdiv(seq_len - lo, BLOCK_N), num_splits) * BLOCK_N
    split_lo = lo + split * split_len
    split_hi = tl.minimum(split_lo + split_len, seq_len)
    # The last split takes all remaining keys, so that a wrong bound on the lengths costs time but no tokens.
    split_hi = tl.where(split == num_splits - 1, seq_len, split_hi)

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < num_tokens * G
    mask_q = mask_m[:, None] & (offs_d < D)[None, :]
    tokens, heads = 0, kv_head * G + offs_m
    if SEVERAL:
        tokens, heads = offs_m // G, kv_head * G + offs_m % G
    q_row = q_ptr + first_token.to(tl.int64) * q_row_stride
    q = tl.load(q_row + (tokens * q_row_stride + heads * D)[:, None] + offs_d[None, :], mask=mask_q, other=0.0)
    row_positions = tl.zeros([BLOCK_M], tl.int32) + (seq_len - num_tokens) + tokens

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
        # The first split takes the sinks too; sinks inside the window are not counted twice.
        sinks_hi = tl.where(split == 0, tl.minimum(NUM_SINKS, lo), 0)
        state = attend_range(queries, keys, layout, state, 0, sinks_hi)
    # One token's window is all of [lo, seq_len); several tokens have different windows.
    ROW_WINDOW: tl.constexpr = WINDOW if SEVERAL else 0
    state = attend_range(queries, keys, layout, state, split_lo, split_hi, ROW_WINDOW, NUM_SINKS)

    # A split without keys stores 0 and -inf, and so does a sequence of length 0.
    out, lse = finish_softmax(state, layout)
    rows = tokens * H + heads  # of the sequence's results
    if BY_LENGTH:
        if num_splits > 1:
            partial_row = item.to(tl.int64) * (TOKENS * H) + rows
            tl.store(partial_ptr + partial_row[:, None] * D + offs_d[None, :], out, mask=mask_q)
            tl.store(partial_lse_ptr + partial_row, lse, mask=mask_m)
        if (split == 0) & (kv_head == 0):
            tl.store(chunks_ptr + 2 * sequence, first_item)
            tl.store(chunks_ptr + 2 * sequence + 1, num_splits)
        row = first_token.to(tl.int64) * H + rows
        mask_q &= num_splits == 1
        mask_m &= num_splits == 1
    else:
        if SEVERAL:
            first_token = tl.where(num_splits > 1, sequence * TOKENS, first_token)
        row = (first_token.to(tl.int64) * H + rows) * num_splits + split
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=mask_q)
    if lse_ptr is not None:
        tl.store(lse_ptr + row, lse, mask=mask_m)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor | None = None,
    *,
    max_query_len: int = 1,
    scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    num_sinks: int = 0,
    max_seq_len: int | None = None,
    num_splits: int | None = None,
    deterministic: bool = False,
    out: Tensor | None = None,
    return_lse: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of each sequence's last token, or last few, over its pages. Does not wait for the device.

    Args:
        q: [T, H, D], the sequences' tokens one after another; rows may be views of a wider tensor.
        k_cache, v_cache: [N, H_kv, page, D] contiguous; int8, or uint8 with e4m3 bits, with scales.
        block_tables: int32 [B, W], W a multiple of 16, padded with any valid page.
        seq_lens: int32 [B], the new tokens included; 0 (graph padding) gives zeros and LSE -inf.
        cu_query_lens: int32 [B + 1]: q[cu_query_lens[s]:cu_query_lens[s + 1]] are the last tokens of sequence s; it may
            have no tokens. Rows of q from cu_query_lens[B] on are unused and not written. None: one token each, T = B.
        max_query_len: With `cu_query_lens`, the most tokens of a sequence, or more; it chooses the tile, which must
            hold them (see `max_rows`).
        scale: Factor on Q.K, as a rule 1 / sqrt(D).
        k_scale, v_scale: fp32 [N, H_kv, page], one per token and head, for quantised caches.
        window: A token at position i sees keys at positions (i - window, i]; None: all up to i.
        num_sinks: Keys at positions [0, num_sinks) are seen besides the window.
        max_seq_len: At least the largest of seq_lens, which lies on the device; by default the capacity of the tables.
            It only chooses the splits; too small a bound makes the last split long.
        num_splits: Programs that share one sequence's keys; by default `choose_num_splits`, and where that says 1, by
            length.
        deterministic: Split into fixed chunks of 512 keys instead, so that a sequence's result does not depend on the
            rest of the batch, bit by bit, as long as the tiles are the same (they depend on `max_query_len`).
        out: [T, H, D] to write to, contiguous.
        return_lse: Also return the log-sum-exp of the scores, fp32 [T, H], base 2.
        tiles: Instead of `decode_tiles`, for experiments.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    kv_format, _, batch_size, num_heads, num_kv_heads, head_dim, page, out, lse = check_paged_inputs(
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, k_scale=k_scale, v_scale=v_scale, scale=scale,
        window=window, num_sinks=num_sinks, out=out, return_lse=return_lse,
    )  # fmt: skip
    group = num_heads // num_kv_heads
    generation = gpu_generation(q.device)
    if tiles is None:
        tiles = decode_tiles(group * max_query_len, head_dim, q.dtype, kv_format, generation)
    max_tokens = _tokens_of_tile(tiles, group, q, batch_size, cu_query_lens, max_query_len)
    pairs = pair_decoder(kv_format, q.dtype, head_dim, generation)
    kernel_format = kernel_kv_format(kv_format, generation) if pairs == "no" else kv_format
    num_keys = max_seq_len or block_tables.shape[1] * page
    if window is not None:
        num_keys = min(num_keys, window + max_tokens - 1)
    if deterministic:
        if num_splits is not None:
            raise ValueError(f"deterministic=True fixes the splits; leave out num_splits (got {num_splits}).")
        num_splits = cdiv(num_keys, DETERMINISTIC_CHUNK)
    chunk, by_length = DETERMINISTIC_CHUNK if deterministic else 0, False
    if num_splits is None:
        num_splits = choose_num_splits(batch_size, num_kv_heads, num_keys, num_multiprocessors(q.device))
        by_length = num_splits == 1 and is_split_by_length(batch_size, num_keys)
    if num_splits < 1:
        raise ValueError(f"num_splits must be at least 1, got {num_splits}.")
    target, target_lse, chunks, grid = out, lse, None, (num_kv_heads, batch_size, num_splits)
    partial = partial_lse = None
    num_rows = max_tokens * num_heads  # of a sequence's partial results
    if by_length:
        grid, chunk = (num_kv_heads, 2 * batch_size, 1), MIN_TOKENS_PER_CHUNK
        partial, partial_lse = _partials(2 * batch_size, num_rows, head_dim, q.device, 2 * batch_size)
        chunks = partial_lse[2 * batch_size * num_rows :].view(torch.int32)
    elif num_splits > 1:
        target, target_lse = _partials(batch_size * num_splits, num_rows, head_dim, q.device)
    if batch_size:
        paged_decode_kernel[grid](
            q, k_cache, v_cache, k_scale, v_scale, block_tables, seq_lens, cu_query_lens, target, target_lse,
            partial, partial_lse, chunks, scale * LOG2_E, q.stride(0), block_tables.stride(0), batch_size,
            H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page, KV_FORMAT=kernel_format, PAIRS=pairs,
            WINDOW=window or 0, NUM_SINKS=num_sinks, CHUNK=chunk,
            BLOCK_M=tiles.block_m, BLOCK_D=padded_head_dim(head_dim), BLOCK_N=tiles.block_n,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
        if by_length:
            merge_splits(partial, partial_lse, out, lse, 0, chunks, cu_query_lens, max_tokens)
        elif num_splits > 1:
            merge_splits(target, target_lse, out, lse, num_splits, None, cu_query_lens, max_tokens)
    return (out, lse) if return_lse else out


def _tokens_of_tile(
    tiles: Tiles, group: int, q: Tensor, batch_size: int, cu_query_lens: Tensor | None, max_query_len: int
) -> int:
    """How many tokens of a sequence the tile holds, 1 without `cu_query_lens`; a ValueError if they do not fit."""
    if cu_query_lens is None:
        if len(q) != batch_size or max_query_len != 1:
            raise ValueError(
                f"Without cu_query_lens decode takes one query per sequence, got {len(q)} and {batch_size} "
                f"sequences, max_query_len {max_query_len}."
            )
        return 1
    num_rows = min(tiles.block_m, max_rows(q.shape[-1]))
    if not 0 < max_query_len * group <= num_rows:
        raise ValueError(
            f"max_query_len must be positive, and its tokens' heads (here {group} each) at most "
            f"{num_rows}, got {max_query_len}; paged_prefill takes longer ones."
        )
    return tiles.block_m // group


def max_rows(head_dim: int) -> int:
    """Rows of a tile for several tokens, at most; more leave no room for keys in registers and shared memory."""
    return MAX_ROWS if padded_head_dim(head_dim) <= 128 else MAX_ROWS // 2


def choose_num_splits(batch_size: int, num_kv_heads: int, num_keys: int, num_sms: int) -> int:
    """Splits of each sequence, from shapes alone so that no length has to be fetched from the device.

    One where the batch fills the GPU twice over: splitting costs a merge. Otherwise two programs per SM, rounded down
    to a power of two, as long as each has work for two tiles.
    """
    num_programs = max(1, batch_size * num_kv_heads)
    if num_programs >= PROGRAMS_PER_SM * num_sms:
        return 1
    wanted = next_power_of_2(PROGRAMS_PER_SM * num_sms // num_programs + 1) // 2
    return max(1, min(wanted, cdiv(num_keys, MIN_TOKENS_PER_SPLIT), MAX_SPLITS))


def is_split_by_length(batch_size: int, num_keys: int) -> bool:
    """Whether a batch that fills the GPU has sequences to split, as far as the bound on their lengths tells."""
    return batch_size > 1 and num_keys > MIN_TOKENS_PER_CHUNK


def decode_tiles(
    num_rows: int, head_dim: int, dtype: torch.dtype, kv_format: KVFormat, generation: Generation
) -> Tiles:
    """The tile table of decode; `num_rows`: tokens of a sequence times query heads of a group.

    Its figures were chosen for code without spills; on Hopper, for heads of 128, then by measured time.
    """
    if generation == "cpu":  # no row more than there is; a tile of keys that stays in the first cache
        return Tiles(next_power_of_2(num_rows), 32, num_warps=1, num_stages=1)
    block_m = max(16, next_power_of_2(num_rows))
    if generation == "cdna":
        return Tiles(block_m, 32, num_warps=4, num_stages=3)  # two tiles of K and V in 64 KiB of LDS
    block_d, block_n = padded_head_dim(head_dim), 64 if kv_format == "none" else 128
    if dtype == torch.float32:
        block_n //= 2  # the same bytes in flight per tile, and registers for fewer scores
    if block_d > 128:
        block_n //= 2
    # Queries of many rows leave less room in registers, where wgmma does not want them, and in shared memory.
    if dtype == torch.float32:
        if block_m >= 64 and block_d > 64:
            block_n = 16
        return Tiles(block_m, block_n, num_warps=4 if block_m < 32 else 8, num_stages=3)
    # Two programs on a multiprocessor, where 3 stages leave room for three: 64 sequences of 8,192 keys, 8 KV heads, are
    # then two even rounds on an H200, not one and a third. 484 us instead of 585, quantised 265 instead of 350.
    if generation == "hopper" and block_m < 64 and block_d == 128:
        return Tiles(block_m, block_n, num_warps=4, num_stages=4)
    if block_m < 64 or (generation == "hopper" and kv_format == "none"):
        return Tiles(block_m, block_n, num_warps=4, num_stages=3)
    if kv_format != "none":
        block_n //= 2
    return Tiles(block_m, block_n, num_warps=8, num_stages=3)


def _partials(
    num_items: int, num_rows: int, head_dim: int, device: torch.device, num_more: int = 0
) -> tuple[Tensor, Tensor]:
    """Outputs and LSEs of each item (a sequence's split) and row, flat; then `num_more` numbers."""
    outputs = num_items * num_rows * head_dim
    workspace = new_workspace(outputs + num_items * num_rows + num_more, device)
    return workspace, workspace[outputs:]
