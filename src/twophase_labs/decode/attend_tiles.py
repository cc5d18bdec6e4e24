"""Online softmax over tiles of keys, as Triton functions: one tile folded in, and a range of positions."""

from twophase_labs.machine.kernels import tl, triton


@triton.jit
def fold_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc):
    """The state (row_max, row_sum, acc) of an online softmax after one tile more, as in lab 2.

    q is [BLOCK_M, BLOCK_D], k and v are [BLOCK_N, BLOCK_D], `visible` is [1 or BLOCK_M, BLOCK_N]: which keys a row may
    see, at least one of the first tile. Scores are in base 2.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
    scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    p = tl.exp2(scores - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(p, axis=1)
    acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return new_max, row_sum, acc


@triton.jit
def attend_tiles(
    q,  # [BLOCK_M, BLOCK_D], the query heads of one group
    table_ptr,  # int32, this sequence's row of the block table
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    qk_scale,  # score scale * log2(e)
    kv_head,
    lo,
    hi,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(row_max, row_sum, acc) after the keys at positions [lo, hi); (-inf, 0, 0) if there are none."""
    offs_d = tl.arange(0, BLOCK_D)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(lo, hi, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < hi
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        slots = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        offs_kv = slots[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        row_max, row_sum, acc = fold_tile(q, k, v, in_range[None, :], qk_scale, row_max, row_sum, acc)
    return row_max, row_sum, acc
