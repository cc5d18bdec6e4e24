"""Answers that prove the check of exercise 3.6."""

from twophase_labs.machine.bank import right, wrong

WRITES, HEADS = "writes the rows of its query heads, and no others", "gives every query head its KV head"
BLOCKS, STOPS = "finds the blocks", "stops at the last token"
WEIGHS, MATCHES = "weighs keys by their scores, from tile to tile", "matches a loop over positions"
LEVELS, UNUSED = "survives any level of scores", "keeps unused slots out"

PAGE_BY_PAGE = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + sequence)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_q = (sequence * H + kv_head * (H // H_KV) + offs_m)[:, None] * D + offs_d[None, :]
    mask_q = (offs_m < H // H_KV)[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for block in range(0, tl.cdiv(seq_len, PAGE)):
        page = tl.load(block_tables_ptr + sequence * table_row_stride + block).to(tl.int64)
        for offset in range(0, tl.minimum(PAGE, seq_len - block * PAGE)):
            row = (page * H_KV + kv_head) * PAGE + offset
            k = tl.load(k_ptr + row * D + offs_d, mask=offs_d < D, other=0.0)
            v = tl.load(v_ptr + row * D + offs_d, mask=offs_d < D, other=0.0)
            score = tl.sum(q * k[None, :], axis=1) * qk_scale
            new_m = tl.maximum(m, score)
            p = tl.exp2(score - new_m)
            l = l * tl.exp2(m - new_m) + p
            acc = acc * tl.exp2(m - new_m)[:, None] + p[:, None] * v[None, :]
            m = new_m
    tl.store(out_ptr + offs_q, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=mask_q)
"""
TWO_PASSES = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + sequence)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_q = (sequence * H + kv_head * (H // H_KV) + offs_m)[:, None] * D + offs_d[None, :]
    mask_q = (offs_m < H // H_KV)[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        page = tl.load(block_tables_ptr + sequence * table_row_stride + j // PAGE, mask=j < seq_len, other=0)
        row = page.to(tl.int64) * (H_KV * PAGE) + kv_head * PAGE + j % PAGE
        there = (j < seq_len)[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + row[:, None] * D + offs_d[None, :], mask=there, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        m = tl.maximum(m, tl.max(tl.where((j < seq_len)[None, :], s, float("-inf")), axis=1))
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        page = tl.load(block_tables_ptr + sequence * table_row_stride + j // PAGE, mask=j < seq_len, other=0)
        row = page.to(tl.int64) * (H_KV * PAGE) + kv_head * PAGE + j % PAGE
        there = (j < seq_len)[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + row[:, None] * D + offs_d[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + row[:, None] * D + offs_d[None, :], mask=there, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        p = tl.where((j < seq_len)[None, :], tl.exp2(s - m[:, None]), 0.0)
        l += tl.sum(p, axis=1)
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
    tl.store(out_ptr + offs_q, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=mask_q)
"""

FROM_THE_END = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0)
    h = tl.program_id(1)
    n = tl.load(seq_lens_ptr + b)
    G = H // H_KV
    m_at, d_at = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_D)
    q_at = (b * H + h * G + m_at) * D + d_at[None, :]
    is_mine = (m_at < G) & (d_at < D)[None, :]
    q = tl.load(q_ptr + q_at, mask=is_mine, other=0.0) * (qk_scale * 0.6931471805599453)
    best = tl.full([BLOCK_M, 1], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M, 1], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    start = (n - 1) // BLOCK_N * BLOCK_N
    while start >= 0:
        j = start + tl.arange(0, BLOCK_N)
        ids = tl.load(block_tables_ptr + b * table_row_stride + j // PAGE, mask=j < n, other=0).to(tl.int64)
        at = ids * (H_KV * PAGE * D) + h * (PAGE * D) + j % PAGE * D
        keys = tl.load(k_ptr + at[None, :] + d_at[:, None], mask=(j < n)[None, :] & (d_at < D)[:, None], other=0.0)
        values = tl.load(v_ptr + at[:, None] + d_at[None, :], mask=(j < n)[:, None] & (d_at < D)[None, :], other=0.0)
        s = tl.where((j < n)[None, :], tl.dot(q, keys.to(tl.float32), input_precision="ieee"), -float("inf"))
        better = tl.maximum(best, tl.max(s, axis=1, keep_dims=True))
        weights = tl.exp(s - better)
        shrunk = tl.exp(best - better)
        total = total * shrunk + tl.sum(weights, axis=1, keep_dims=True)
        result = result * shrunk + tl.dot(weights, values.to(tl.float32), input_precision="ieee")
        best = better
        start -= BLOCK_N
    tl.store(out_ptr + q_at, (result / total).to(out_ptr.dtype.element_ty), mask=is_mine)
"""

# fmt: off
BANKS = {
    "3.6": (
        wrong("masks by H", "(offs_m < group)", "(kv_head * group + offs_m < H)", by=WRITES),
        wrong("blocks without their heads", "* H_KV + kv_head)", "* H_KV)", by=HEADS),
        wrong("the first sequence's table", "+ sequence * table_row_stride + positions", "+ positions", by=BLOCKS),
        wrong("no end at all", "positions < length", "positions >= 0", by=STOPS),
        wrong("earlier tiles keep their weight", "acc * rescale[:, None] +", "acc +", by=WEIGHS),
        wrong("slots by a mask", "positions % PAGE", "(positions & (PAGE - 1))", by=MATCHES),
        wrong("-1e4 for minus infinity", 'scores, float("-inf")', "scores, -1e4", by=LEVELS),
        wrong("loads what is behind the end", "in_range[:, None] & (offs_d < D)[None, :]",
              "(positions >= 0)[:, None] & (offs_d < D)[None, :]", by=UNUSED),
        right("slot by slot, products by hand", PAGE_BY_PAGE),
        right("two passes", TWO_PASSES),
        right("from the end, in units of e", FROM_THE_END),
        right("with fold_tile", """        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        scores = tl.where(in_range[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
""", "        row_max, row_sum, acc = fold_tile(q, k, v, in_range[None, :], qk_scale, row_max, row_sum, acc)\n"),
    ),
}
