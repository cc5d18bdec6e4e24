"""`paged_prefill` for Hopper with roles: a producer copies pages by TMA, two consumers multiply. Not run on a GPU.

In `paged_prefill` every thread computes addresses of keys and copies a part of each tile, 16 bytes at a time, between
the products. Here a page is a tile: its keys of one head are one box of a tensor map. One thread of the producer asks
for a box; the hardware copies it and reports to an mbarrier. Two consumers of four warps each own half of the rows of
queries, and wait for mbarriers alone.

Triton 3.7.1 gives roles to a kernel with a single loop, all of whose matrices come by TMA. So

- the mask is applied to every page, also to those below the diagonal: 30 % of a consumer's instructions in the loop;
- the last page is read from before its start, so that the tile ends with the last key that some row sees. TMA fills
  with zeros all that lies outside of a page. Slots that no sequence owns may hold NaN, and 0 * NaN is NaN;
- the search for the program's sequence is unrolled, and a program without tokens reads no page.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import next_power_of_2, tl, triton
from twophase_kernels.attend_range import LOG2_E
from twophase_kernels.paged_inputs import check_paged_inputs

PAGE = 64  # tokens
BLOCK_M = 128  # rows of queries: 64 for each consumer, as many as one wgmma takes


@triton.jit
def find_sequence(cu_query_lens_ptr, block, num_seqs, BLOCK_Q: tl.constexpr, STEPS: tl.constexpr):
    """As that of `paged_prefill`, among at most 2^STEPS sequences: once one is left, the search stays there."""
    first = 0
    end = num_seqs
    for _ in tl.static_range(STEPS):
        middle = (first + end) // 2
        starts_before = tl.load(cu_query_lens_ptr + middle) // BLOCK_Q + middle <= block
        first = tl.where(starts_before, middle, first)
        end = tl.where(starts_before, end, middle)
    return first


@triton.jit(
    do_not_specialize=["table_row_stride", "num_seqs", "num_tokens"],
    do_not_specialize_on_alignment=["block_tables_ptr", "seq_lens_ptr", "cu_query_lens_ptr", "lse_ptr"],
)
def paged_prefill_tma_kernel(
    q_ptr,  # [T, H, D], rows q_row_stride apart
    k_map,  # [N, H_KV, PAGE, D], boxes of [1, 1, PAGE, D]
    v_map,  # like k_map
    block_tables_ptr,  # int32 [S, W]
    seq_lens_ptr,  # int32 [S]
    cu_query_lens_ptr,  # int32 [S + 1]
    out_ptr,  # [T, H, D]
    lse_ptr,  # fp32 [T, H] or None
    qk_scale,  # score scale * log2(e)
    q_row_stride,
    table_row_stride,
    num_seqs,
    num_tokens,
    H: tl.constexpr,
    G: tl.constexpr,  # heads of a group, and their number rounded up to a power of two:
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
):
    """One program: as in `paged_prefill_kernel`, BLOCK_Q tokens of one chunk and the G query heads of one KV head."""
    BLOCK_M: tl.constexpr = BLOCK_Q * HEADS
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(cu_query_lens_ptr, block, num_seqs, BLOCK_Q, SEARCH_STEPS)
    chunk_start = tl.load(cu_query_lens_ptr + sequence)
    chunk_len = tl.load(cu_query_lens_ptr + sequence + 1) - chunk_start
    first_token = (block - (chunk_start // BLOCK_Q + sequence)) * BLOCK_Q
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence.to(tl.int64) * table_row_stride

    # Rows of padding are other chunks' tokens, other groups' heads or zeros; they are not stored.
    # A map that the host made would not do for q: the compiler halves its box, a half for each consumer.
    q_map = tl.make_tensor_descriptor(q_ptr, [num_tokens, H, D], [q_row_stride, D, 1], [BLOCK_Q, HEADS, D])
    q = q_map.load([chunk_start + first_token, kv_head * G, 0]).reshape(BLOCK_M, D)
    offs_m, offs_d, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, PAGE)
    tokens, heads = first_token + offs_m // HEADS, offs_m % HEADS
    row_positions = seq_len - chunk_len + tokens

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    hi = tl.where(first_token < chunk_len, tl.minimum(seq_len - chunk_len + first_token + BLOCK_Q, seq_len), 0)
    for start in tl.range(0, hi, PAGE, warp_specialize=True):
        page = tl.load(table_ptr + start // PAGE)
        ahead = tl.maximum(start + PAGE - hi, 0)  # rows of zeros before the page
        k = k_map.load([page, kv_head, -ahead, 0]).reshape(PAGE, D)
        scores = tl.dot(q, k.T)
        visible = (offs_n[None, :] <= (row_positions - start + ahead)[:, None]) & (offs_n >= ahead)[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        # Every row sees key 0, and padding no fewer keys: no maximum is -inf.
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * qk_scale)
        p = tl.exp2(scores * qk_scale - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        v = v_map.load([page, kv_head, -ahead, 0]).reshape(PAGE, D)
        acc = tl.dot(p.to(q.dtype), v, acc * rescale[:, None])
        row_max = new_max

    mask_m = (tokens < chunk_len) & (heads < G)
    # Counted from the chunk's start: rows counted from that of q's box Triton 3.7.1 shifts twice for a consumer.
    offs_row = tokens * H + kv_head * G + heads
    out_ptr += chunk_start.to(tl.int64) * (H * D)
    out = (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offs_row[:, None] * D + offs_d[None, :], out, mask=mask_m[:, None])
    if lse_ptr is not None:
        tl.store(lse_ptr + chunk_start.to(tl.int64) * H + offs_row, row_max + tl.log2(row_sum), mask=mask_m)


def paged_prefill_tma(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor,
    *,
    scale: float,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `paged_prefill`, for q and caches of 16 bits, pages of 64 and heads of 64 or 128, on Hopper.

    Raises:
        ValueError: An argument breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    _, num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, page, out, lse = check_paged_inputs(
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, k_scale=None, v_scale=None, scale=scale,
        window=None, num_sinks=0, out=out, return_lse=return_lse,
    )  # fmt: skip
    group = num_heads // num_kv_heads
    dtypes = {q.dtype, k_cache.dtype}
    if page != PAGE or head_dim not in (64, 128) or group > 32 or dtypes not in ({torch.float16}, {torch.bfloat16}):
        raise ValueError(
            f"This kernel takes pages of {PAGE}, heads of 64 or 128, at most 32 to a KV head, one dtype of 16 bits; "
            f"got pages of {page}, heads of {head_dim}, {group} to a KV head, {q.dtype} and {k_cache.dtype}."
        )
    if num_tokens and num_seqs:
        from triton.tools.tensor_descriptor import TensorDescriptor

        # Room for the map of q that each program makes.
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=q.device))
        heads = next_power_of_2(group)
        block_q = BLOCK_M // heads
        k_map, v_map = (TensorDescriptor.from_tensor(x, [1, 1, PAGE, head_dim]) for x in (k_cache, v_cache))
        paged_prefill_tma_kernel[(num_tokens // block_q + num_seqs, num_kv_heads)](
            q, k_map, v_map, block_tables, seq_lens, cu_query_lens, out, lse, scale * LOG2_E, q.stride(0),
            block_tables.stride(0), num_seqs, num_tokens, H=num_heads, G=group, HEADS=heads, D=head_dim, PAGE=PAGE,
            BLOCK_Q=block_q, SEARCH_STEPS=max(10, (num_seqs - 1).bit_length()), num_warps=4, num_stages=4,
        )  # fmt: skip
    return (out, lse) if return_lse else out
