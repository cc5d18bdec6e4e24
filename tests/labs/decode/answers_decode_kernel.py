"""Answers that prove the checks of exercise 3.8."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

HEAD = """
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
"""
# Products by hand instead of `tl.dot`, the maximum guarded, page after page.
PAGE_BY_PAGE = (
    HEAD
    + """
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
)
# Two passes: the maximum first, then weights and values. No rescaling.
TWO_PASSES = (
    HEAD
    + """
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
)


def changed(kernel: str, old: str, new: str) -> str:
    if old not in kernel:
        raise ValueError(f"{old!r} is not in the kernel")
    return kernel.replace(old, new)


WRITES_NOTHING = HEAD
ONE_HEAD_ONLY = changed(TWO_PASSES, "offs_m < H // H_KV", "offs_m < 1")
V_BEHIND_THE_END = changed(
    TWO_PASSES,
    "v = tl.load(v_ptr + row[:, None] * D + offs_d[None, :], mask=there",
    "v = tl.load(v_ptr + row[:, None] * D + offs_d[None, :], mask=(offs_d < D)[None, :]",
)

WRITES = "writes a number for every query head"
HEADS, PAGES, STOPS = "gives every query head its KV head", "finds the blocks", "stops at the last token"
APART, WEIGHS, CARRIES = "keeps sequences apart", "weighs keys by their scores", "carries on from tile to tile"
LARGE, UNUSED = "survives large scores", "keeps unused slots out"
NO_RESCALE = "tl.full([BLOCK_M], 1.0, tl.float32)"

BANKS = {
    "3.8": Bank(
        wrong=(
            Wrong("dropped last token", {3: "positions < seq_len - 1"}, STOPS),
            Wrong("one past the end", {3: "positions <= seq_len"}, STOPS),
            Wrong("no end at all", {3: "positions >= 0"}, STOPS),
            Wrong(
                "the last tile only if it is full", {3: "(positions < seq_len) & (start + BLOCK_N <= seq_len)"}, STOPS
            ),
            Wrong("head map h % H_KV", {1: "offs_m * H_KV + kv_head"}, HEADS),
            Wrong("the KV head as query head", {1: "kv_head + offs_m"}, WRITES),
            Wrong("all rows of the tile", {2: "(offs_m < BLOCK_M)[:, None]"}, WRITES),
            Wrong("H rows instead of G", {2: "(offs_m < H)[:, None]"}, WRITES),
            Wrong("one row only", ONE_HEAD_ONLY, WRITES),
            Wrong("writes nothing", WRITES_NOTHING, WRITES),
            Wrong("logical blocks as pages", {4: "positions // PAGE"}, PAGES),
            Wrong("the page of the tile's first position", {4: "tl.load(table_ptr + start // PAGE)"}, PAGES),
            Wrong(
                "wrong page: one block on",
                {4: "tl.load(table_ptr + positions // PAGE + 1, mask=in_range, other=0)"},
                PAGES,
            ),
            Wrong(
                "stale page: the block before",
                {4: "tl.load(table_ptr + tl.maximum(positions // PAGE - 1, 0), mask=in_range, other=0)"},
                PAGES,
            ),
            Wrong(
                "the first sequence's table",
                {4: "tl.load(block_tables_ptr + positions // PAGE, mask=in_range, other=0)"},
                APART,
            ),
            Wrong("the table without a mask", {4: "tl.load(table_ptr + positions // PAGE)"}, STOPS),
            Wrong("first slot of every page", {5: "(pages.to(tl.int64) * H_KV + kv_head) * PAGE"}, PAGES),
            Wrong("position as slot", {5: "(pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions"}, PAGES),
            Wrong("no KV head", {5: "pages.to(tl.int64) * H_KV * PAGE + positions % PAGE"}, HEADS),
            Wrong(
                "layout [N, PAGE, H_KV, D]",
                {5: "(pages.to(tl.int64) * PAGE + positions % PAGE) * H_KV + kv_head"},
                HEADS,
            ),
            Wrong("pages without their heads", {5: "(pages.to(tl.int64) + kv_head) * PAGE + positions % PAGE"}, HEADS),
            Wrong("loads what is behind the end", {6: "(offs_d < D)[None, :] & (positions >= 0)[:, None]"}, UNUSED),
            Wrong("V loaded behind the end", V_BEHIND_THE_END, UNUSED),
            Wrong("columns without a mask", {6: "in_range[:, None] & (offs_d >= 0)[None, :]"}, HEADS),
            Wrong("missing scale", {7: 'tl.dot(q, tl.trans(k), input_precision="ieee")'}, WEIGHS),
            Wrong("scale twice", {7: 'tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale * qk_scale'}, WEIGHS),
            Wrong("ignores the scores", {7: "tl.zeros([BLOCK_M, BLOCK_N], tl.float32)"}, WEIGHS),
            Wrong("unmasked tail", {8: "scores"}, STOPS),
            Wrong("tail masked with 0", {8: "tl.where(in_range[None, :], scores, 0.0)"}, STOPS),
            Wrong("exp instead of exp2", {9: "tl.exp(scores - new_max[:, None])"}, WEIGHS),
            Wrong("the old maximum", {9: "tl.exp2(scores - row_max[:, None])"}, WRITES),
            Wrong("no rescaling", {10: NO_RESCALE}, CARRIES),
            Wrong("forgets earlier tiles", {10: "tl.zeros([BLOCK_M], tl.float32)"}, CARRIES),
            Wrong(
                "rescaled the wrong way",
                {10: "tl.exp2(tl.where(row_max == float('-inf'), -1e9, new_max - row_max))"},
                CARRIES,
            ),
            Wrong("no maximum", {9: "tl.exp2(scores)", 10: NO_RESCALE}, LARGE),
            Wrong("not divided", {11: "acc"}, STOPS),
            Wrong("a mean over the tile", {11: "acc / seq_len"}, WEIGHS),
        ),
        right=(
            Right("page by page, products by hand", PAGE_BY_PAGE),
            Right("two passes", TWO_PASSES),
            Right("masked scores by a sum", {8: 'scores + tl.where(in_range, 0.0, float("-inf"))[None, :]'}),
            Right(
                "strides spelt out",
                {5: "pages.to(tl.int64) * (H_KV * PAGE) + kv_head * PAGE + positions - positions // PAGE * PAGE"},
            ),
        ),
    ),
}
BANKS = opened_all(BANKS)
