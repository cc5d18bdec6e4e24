"""Answers that prove the checks of exercise 2.12."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_12 = """
@triton.jit
def paged_prefill_kernel(
    q_ptr,  # [T, H, D]
    k_ptr,  # [N, H_KV, PAGE, D]
    v_ptr,  # like k_ptr
    block_tables_ptr,  # int32 [S, W]
    seq_lens_ptr,  # int32 [S]
    cu_query_lens_ptr,  # int32 [S + 1]
    out_ptr,  # [T, H, D]
    lse_ptr,  # fp32 [T, H]
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
    """One program: BLOCK_Q tokens of one chunk and the G query heads of one KV head, over all keys they see."""
    G: tl.constexpr = H // H_KV
    BLOCK_Q: tl.constexpr = BLOCK_M // G
    sequence, kv_head = tl.program_id(1), tl.program_id(2)
    chunk_start = tl.load(cu_query_lens_ptr + sequence)
    chunk_len = tl.load(cu_query_lens_ptr + sequence + 1) - chunk_start
    first_token = tl.program_id(0) * BLOCK_Q  # counted from chunk_start, as tokens are
    if first_token >= chunk_len:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    num_cached = seq_len - chunk_len

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    tokens = first_token + offs_m // G
    heads = kv_head * G + offs_m % G
    mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len)
    mask_q = mask_m[:, None] & (offs_d < D)[None, :]
    rows = (chunk_start + tokens) * H + heads
    q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :], mask=mask_q, other=0.0)
    row_positions = num_cached + tokens

    hi = tl.minimum(num_cached + first_token + BLOCK_Q, seq_len)  # keys [0, hi) are seen by some row
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    for start in tl.range(0, hi, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        in_range = positions < hi
        page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)
        offsets = positions % PAGE
        slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets
        offs_kv = slots[:, None] * D + offs_d[None, :]
        mask_kv = in_range[:, None] & (offs_d < D)[None, :]
        k = tl.load(k_ptr + offs_kv, mask=mask_kv, other=0.0)
        v = tl.load(v_ptr + offs_kv, mask=mask_kv, other=0.0)
        visible = in_range[None, :] & (positions[None, :] <= row_positions[:, None])
        row_max, row_sum, acc = attend_tile(
            q, k, v, visible, qk_scale, row_max, row_sum, acc
        )

    out = acc / row_sum[:, None]
    lse = row_max + tl.log2(row_sum)
    tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], out, mask=mask_q)
    tl.store(lse_ptr + rows, lse, mask=mask_m)
"""

BANKS = {
    "2.12": Bank(
 wrong=(
Wrong("tables 16 entries wide", edited(SOLVED_2_12, ("table_ptr = block_tables_ptr + sequence * table_row_stride", "table_ptr = block_tables_ptr + sequence * 16")), "matches attention in a loop"),
Wrong("no history", edited(SOLVED_2_12, ("num_cached = seq_len - chunk_len", "num_cached = 0")), "READS"),
Wrong("the whole sequence as history", edited(SOLVED_2_12, ("num_cached = seq_len - chunk_len", "num_cached = seq_len")), "READS"),
Wrong("reads KV head h % H_kv", {1: "kv_head + offs_m % G * H_KV"}, "READS"),
Wrong("the heads of the first group", {1: "offs_m % G"}, "READS"),
Wrong("tokens and heads exchanged", {1: "kv_head * G + offs_m // BLOCK_Q"}, "READS"),
Wrong("rows beyond the chunk", edited(SOLVED_2_12, ("mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len)", "mask_m = (offs_m < BLOCK_Q * G) & (tokens >= 0)")), "READS"),
Wrong("one row too few", edited(SOLVED_2_12, ("mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len)", "mask_m = (offs_m < BLOCK_Q * G) & (tokens < chunk_len - 1)")), "READS"),
Wrong("every chunk at the start of the batch", {2: "tokens * H + heads"}, "READS"),
Wrong("rows as if there were no groups", {2: "(chunk_start + tokens) * H_KV + heads"}, "READS"),
Wrong("positions counted from the chunk", {3: "tokens"}, "READS"),
Wrong("every row at the end of the sequence", {3: "seq_len - 1 + offs_m * 0"}, "READS"),
Wrong("everybody's table is the first one", edited(SOLVED_2_12, ("table_ptr = block_tables_ptr + sequence * table_row_stride", "table_ptr = block_tables_ptr")), "READS"),
Wrong("drops the last key", edited(SOLVED_2_12, ("in_range = positions < hi", "in_range = positions < hi - 1")), "READS"),
Wrong("loads one key past the end", edited(SOLVED_2_12, ("in_range = positions < hi", "in_range = positions < hi + 1")), "keeps unused slots out"),
Wrong("loads the whole last tile", edited(SOLVED_2_12, ("in_range = positions < hi", "in_range = positions >= 0")), "keeps unused slots out"),
Wrong("a table entry per position", edited(SOLVED_2_12, ("page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)", "page_ids = tl.load(table_ptr + positions, mask=in_range, other=0)")), "READS"),
Wrong("the offset as table entry", edited(SOLVED_2_12, ("page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)", "page_ids = tl.load(table_ptr + positions % PAGE, mask=in_range, other=0)")), "READS"),
Wrong("the next page", edited(SOLVED_2_12, ("page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)", "page_ids = tl.load(table_ptr + positions // PAGE + 1, mask=in_range, other=0)")), "READS"),
Wrong("the position as offset", edited(SOLVED_2_12, ("offsets = positions % PAGE", "offsets = positions")), "READS"),
Wrong("heads behind slots", edited(SOLVED_2_12, ("slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets", "slots = (page_ids.to(tl.int64) * PAGE + offsets) * H_KV + kv_head")), "READS"),
Wrong("no heads in a page", edited(SOLVED_2_12, ("slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets", "slots = page_ids.to(tl.int64) * PAGE + offsets")), "READS"),
Wrong("the position as slot", edited(SOLVED_2_12, ("slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets", "slots = kv_head * PAGE + positions")), "READS"),
Wrong("sees the future", {6: "in_range[None, :]"}, "READS"),
Wrong("sees one key of the future", {6: "positions[None, :] <= row_positions[:, None] + 1"}, "READS"),
Wrong("does not see itself", {6: "positions[None, :] < row_positions[:, None]"}, "READS"),
Wrong("no scale", edited(SOLVED_2_12, ("        row_max, row_sum, acc = attend_tile(\n            q, k, v, visible, qk_scale, row_max, row_sum, acc\n        )", "row_max, row_sum, acc = attend_tile(q, k, v, visible, 1.0, row_max, row_sum, acc)")), "READS"),
Wrong("values as keys", edited(SOLVED_2_12, ("        row_max, row_sum, acc = attend_tile(\n            q, k, v, visible, qk_scale, row_max, row_sum, acc\n        )", "row_max, row_sum, acc = attend_tile(q, v, k, visible, qk_scale, row_max, row_sum, acc)")), "READS"),
Wrong("not normalised", edited(SOLVED_2_12, ("out = acc / row_sum[:, None]", "out = acc")), "READS"),
Wrong("log-sum-exp in base e", edited(SOLVED_2_12, ("lse = row_max + tl.log2(row_sum)", "lse = (row_max + tl.log2(row_sum)) * 0.6931471805599453")), "gives the LSE in base 2"),
Wrong("bases mixed", edited(SOLVED_2_12, ("lse = row_max + tl.log2(row_sum)", "lse = row_max + tl.log(row_sum)")), "gives the LSE in base 2"),
Wrong("the maximum left out", edited(SOLVED_2_12, ("lse = row_max + tl.log2(row_sum)", "lse = tl.log2(row_sum)")), "gives the LSE in base 2"),
),
 right=(
Right("32-bit slots", edited(SOLVED_2_12, ("slots = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + offsets", "slots = page_ids * (H_KV * PAGE) + kv_head * PAGE + positions % PAGE"))),
Right("offsets by their bits", edited(SOLVED_2_12, ("offsets = positions % PAGE", "offsets = positions & (PAGE - 1)"))),
Right("a difference of positions", {6: "row_positions[:, None] - positions[None, :] >= 0"}),
Right("one division per row", edited(SOLVED_2_12, ("out = acc / row_sum[:, None]", "out = acc * (1.0 / row_sum)[:, None]"))),
Right("positions written out", {3: "seq_len - chunk_len + first_token + offs_m // G"}),
),
),
}
