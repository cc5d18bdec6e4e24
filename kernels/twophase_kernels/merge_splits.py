"""Merge the partial results of split-KV decode: S softmaxes over disjoint keys into one over all of them.

A split s hands over out_s, the attention output over its own keys, and LSE_s = log2 sum_j 2^(score_j). Then

    out = sum_s 2^(LSE_s - LSE) out_s      LSE = log2 sum_s 2^LSE_s      (FlashDecoding; arXiv:2311.01282, section 3)

exactly: no score is needed again. Partials stay fp32: rounded to bf16 first, they would cost a digit for nothing.
"""

from torch import Tensor

from twophase_kernels._triton import tl, triton
from twophase_kernels.attend_range import padded_head_dim

# Splits that one step of the kernel takes side by side. Not a tuning knob of num_splits: which lane a split falls on,
# and so the order of the sum, must not depend on how many (empty) splits the launch had.
SPLITS_PER_STEP = 16


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["cu_query_lens_ptr"])
def merge_splits_kernel(
    partial_ptr,  # fp32 [B, ROWS, num_splits, D]
    partial_lse_ptr,  # fp32 [B, ROWS, num_splits], base 2; -inf: the split had no keys, its partial is not read
    out_ptr,  # [T, H, D]
    lse_ptr,  # fp32 [T, H] or None
    chunks_ptr,  # None; or int32 [B, 2]: a sequence's splits are partials [first, first + count), [items, ROWS, D]
    cu_query_lens_ptr,  # None: each sequence has one token, T = B; or int32 [B + 1]
    num_splits,
    H: tl.constexpr,
    ROWS: tl.constexpr,  # H, times the most tokens of a sequence
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One program merges the splits of one row: one query head of one of a sequence's tokens."""
    row = tl.program_id(0).to(tl.int64)
    out_row = row
    if cu_query_lens_ptr is not None:
        out_row = tl.load(cu_query_lens_ptr + row // ROWS) * H + row % ROWS
        if out_row >= tl.load(cu_query_lens_ptr + row // ROWS + 1) * H:
            return  # the sequence has fewer tokens
    first, step = row * num_splits, 1
    if chunks_ptr is not None:
        first = tl.load(chunks_ptr + row // ROWS * 2).to(tl.int64) * ROWS + row % ROWS
        step = ROWS
        num_splits = tl.load(chunks_ptr + row // ROWS * 2 + 1)
        if num_splits == 1:
            return  # it has written its result
    offs_lane = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    m_lane = tl.full([BLOCK_S], float("-inf"), tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        offs_s = start + offs_lane
        lse = tl.load(partial_lse_ptr + first + offs_s * step, mask=offs_s < num_splits, other=float("-inf"))
        m_lane = tl.maximum(m_lane, lse)
    m = tl.max(m_lane, axis=0)
    m_safe = tl.where(m == float("-inf"), 0.0, m)  # every split empty: -inf - -inf would be NaN

    weight_sum = tl.zeros([BLOCK_S], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        offs_s = start + offs_lane
        lse = tl.load(partial_lse_ptr + first + offs_s * step, mask=offs_s < num_splits, other=float("-inf"))
        weight = tl.exp2(lse - m_safe)
        mask = (lse > float("-inf"))[:, None] & (offs_d < D)[None, :]
        offs = (first + offs_s * step)[:, None] * D + offs_d[None, :]
        acc += weight[:, None] * tl.load(partial_ptr + offs, mask=mask, other=0.0)
        weight_sum += weight
    total = tl.sum(weight_sum, axis=0)
    total_safe = tl.where(total == 0, 1.0, total)
    out = tl.sum(acc, axis=0) / total_safe
    tl.store(out_ptr + out_row * D + offs_d, out.to(out_ptr.dtype.element_ty), mask=offs_d < D)
    if lse_ptr is not None:
        tl.store(lse_ptr + out_row, m + tl.log2(total_safe))


def merge_splits(
    partial: Tensor,
    partial_lse: Tensor,
    out: Tensor,
    lse: Tensor | None,
    num_splits: int,
    chunks: Tensor | None = None,
    cu_query_lens: Tensor | None = None,
    max_tokens: int = 1,
) -> None:
    """Merge attention over disjoint sets of keys. Shapes are not checked: `paged_decode` makes the tensors.

    Args:
        partial: fp32, B H S D elements or more: the output of each split; not read where the split's LSE is -inf.
        partial_lse: fp32, B H S elements, base 2; -inf for a split without keys.
        out: [B, H, D], written in its own dtype: all keys together; 0 for rows whose splits are all empty.
        lse: fp32 [B, H], base 2, or None.
        num_splits: S.
        chunks: int32 [B, 2], where sequences differ in their number of splits; see the kernel.
        cu_query_lens: int32 [B + 1], where sequences differ in their number of tokens, `max_tokens` at most.
    """
    num_tokens, num_heads, head_dim = out.shape
    num_sequences = num_tokens if cu_query_lens is None else len(cu_query_lens) - 1
    num_rows = num_heads * max_tokens
    if num_sequences:
        merge_splits_kernel[(num_sequences * num_rows,)](
            partial, partial_lse, out, lse, chunks, cu_query_lens, num_splits,
            H=num_heads, ROWS=num_rows, D=head_dim, BLOCK_D=padded_head_dim(head_dim),
            BLOCK_S=SPLITS_PER_STEP, num_warps=4,
        )  # fmt: skip
