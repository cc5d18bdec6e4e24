"""Answers that prove the check of exercise 3.8."""

from twophase_labs.machine.bank import right, wrong

WRITES, HEADS = "writes a number for every query head", "gives every query head its KV head"
LEAVES_THE, PAGES, APART = "leaves the rows of other programs alone", "finds the blocks", "keeps sequences apart"
STOPS, WEIGHS, CARRIES = "stops at the last token", "weighs keys by their scores", "carries on from tile to tile"
MATCHES_A, LARGE = "matches a loop over positions", "survives large scores"
SURVIVES_ANY, UNUSED = "survives any level of scores", "keeps unused slots out"

SLOTS_BY_A_MASK = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * G + offs_m
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + (positions & (PAGE - 1))
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        scores = tl.where(in_range[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
"""
A_1E4_FOR_MINUS_INFINITY = """
@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    G: tl.constexpr = H // H_KV
    seq_len = tl.load(seq_lens_ptr + sequence)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * G + offs_m
    mask_q = (offs_m < G)[:, None] & (offs_d < D)[None, :]
    offs_q = (sequence * H + heads)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, seq_len, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < seq_len
        pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE
        offs_kv = rows[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        scores = tl.where(in_range[None, :], scores, -1e4)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_q, out.to(out_ptr.dtype.element_ty), mask=mask_q)
"""
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

# fmt: off
BANKS = {
    "3.8": (
        wrong("the KV head as query head", "kv_head * G", "kv_head", by=WRITES),
        wrong("pages without their heads", ".to(tl.int64) * H_KV", ".to(tl.int64)", by=HEADS),
        wrong("masks by H", "has_query = offs_m < G", "has_query = heads < H", by=LEAVES_THE),
        wrong("position as slot", "positions % PAGE", "positions", by=PAGES),
        wrong("the first sequence's table", "table_ptr + positions // PAGE", "block_tables_ptr + positions // PAGE",
              by=APART),
        wrong("no end at all", "< seq_len", ">= 0", by=STOPS),
        wrong("a mean over the tile", "row_sum[:, None]", "seq_len", by=WEIGHS),
        wrong("forgets earlier tiles", "qk_scale, row_max, row_sum, acc)", "qk_scale, row_max, row_sum * 0, acc * 0)",
              by=CARRIES),
        wrong("slots by a mask", SLOTS_BY_A_MASK, by=MATCHES_A),
        wrong("no maximum", "row_max, row_sum, acc = fold_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc)",
              'p = tl.where(visible, tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale), 0.0)\n        row_sum, acc = row_sum + tl.sum(p, axis=1), acc + tl.dot(p.to(v.dtype), v, input_precision="ieee")',
              by=LARGE),
        wrong("-1e4 for minus infinity", A_1E4_FOR_MINUS_INFINITY, by=SURVIVES_ANY),
        wrong("loads what is behind the end", "in_range[:, None] & (offs_d < D)[None, :",
              "(offs_d < D)[None, :] & (positions >= 0)[:, None", by=UNUSED),
        right("page by page, products by hand", PAGE_BY_PAGE),
        right("two passes", TWO_PASSES),
    ),
}
