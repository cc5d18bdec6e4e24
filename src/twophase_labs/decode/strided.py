"""The decode kernel over K kept as [N, H_KV, D, PAGE]: right, and strided."""

from twophase_labs.decode.attend_tiles import fold_tile
from twophase_labs.machine.kernels import tl, triton


@triton.jit
def strided_decode_kernel(
    q_ptr,  # [B, H, D]
    k_ptr,  # [N, H_KV, D, PAGE]: a token's elements are PAGE apart
    v_ptr,  # [N, H_KV, PAGE, D]
    block_tables_ptr,  # int32 [B, W]
    seq_lens_ptr,  # int32 [B], at least 1
    out_ptr,  # [B, H, D]
    qk_scale,  # score scale * log2(e)
    table_row_stride,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: the G query heads of one KV head, of one sequence."""
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    offs_q = (sequence * H + kv_head * G + offs_m)[:, None] * D + offs_d[None, :]
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len
        pages = tl.load(block_tables_ptr + sequence * table_row_stride + positions // PAGE, mask=in_range, other=0)
        blocks = pages.to(tl.int64) * H_KV + kv_head
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(
            k_ptr + (blocks[:, None] * D + offs_d[None, :]) * PAGE + (positions % PAGE)[:, None],
            mask=mask_kv,
            other=0.0,
        )
        v = tl.load(v_ptr + (blocks * PAGE + positions % PAGE)[:, None] * D + offs_d[None, :], mask=mask_kv, other=0.0)
        row_max, row_sum, acc = fold_tile(q, k, v, in_range[None, :], qk_scale, row_max, row_sum, acc)
    tl.store(out_ptr + offs_q, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=mask_q)
