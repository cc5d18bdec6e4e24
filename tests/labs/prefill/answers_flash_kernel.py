"""Answers that prove the check of exercise 2.7."""

from twophase_labs.machine.bank import right, wrong

SEES, RESCALES, MATCHES = "sees the keys up to its own", "rescales old tiles", "matches attention row by row"
LEVELS, HIDDEN, LSE = "survives any level of scores", "loads no tile above the diagonal", "gives the LSE in base 2"
HALF = "takes float16 as well"

TWO_PASSES = """
@triton.jit
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, qk_scale, L,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK_M
    r, d = at + tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_D)
    q = tl.load(q_ptr + r * D + d[None, :], mask=(r < L) & (d < D)[None, :], other=0.0)
    m = tl.full([BLOCK_M, 1], float("-inf"), tl.float32)
    for start in range(0, at + BLOCK_M, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        there = (j < L) & (j < at + BLOCK_M)
        k = tl.load(k_ptr + j[None, :] * D + d[:, None], mask=there[None, :] & (d < D)[:, None], other=0.0)
        s = tl.where(j[None, :] <= r, tl.dot(q, k, input_precision="ieee") * qk_scale, float("-inf"))
        m = tl.maximum(m, tl.max(s, axis=1, keep_dims=True))
    l = tl.zeros([BLOCK_M, 1], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, at + BLOCK_M, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        there = (j < L) & (j < at + BLOCK_M)
        k = tl.load(k_ptr + j[None, :] * D + d[:, None], mask=there[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(v_ptr + j[:, None] * D + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
        p = tl.where(j[None, :] <= r, tl.exp2(tl.dot(q, k, input_precision="ieee") * qk_scale - m), 0.0)
        l += tl.sum(p, axis=1, keep_dims=True)
        o += tl.dot(p.to(v.dtype), v, input_precision="ieee")
    tl.store(out_ptr + r * D + d[None, :], o / l, mask=(r < L) & (d < D)[None, :])
    tl.store(lse_ptr + r, m + tl.log2(l), mask=r < L)
"""

# fmt: off
BANKS = {
    "2.7": (
        wrong("sees the future", "keys[None, :] <= rows[:, None]", "keys[None, :] < hi", by=SEES),
        wrong("a tile too few", "range(0, hi, BLOCK_N)", "range(0, hi - BLOCK_N + 1, BLOCK_N)", by=SEES),
        wrong("hidden keys score 0", 'scores, float("-inf"))', "scores, 0.0)", by=SEES),
        wrong("old sums keep their size", "rescale = tl.exp2(row_max - new_max)",
              "rescale = tl.where(row_max > -1e30, 1.0, 0.0)", by=RESCALES),
        wrong("rows of 16 elements", "v_ptr + keys[:, None] * D", "v_ptr + keys[:, None] * (D // 16 * 16)", by=MATCHES),
        wrong("a maximum of at least -1e4", 'float("-inf"), tl.float32)', "-1e4, tl.float32)", by=LEVELS),
        wrong("every key tile", "tl.minimum((tl.program_id(0) + 1) * BLOCK_M, L)", "L", by=HIDDEN),
        wrong("weights stay float32", "p.to(v.dtype)", "p", by=HALF),
        wrong("LSE in base e", "tl.log2", "tl.log", by=LSE),
        right("two passes", TWO_PASSES),
        right("a mask of differences, and a division by a product", "keys[None, :] <= rows[:, None]",
              "rows[:, None] - keys[None, :] >= 0", "acc / row_sum[:, None]", "acc * (1.0 / row_sum[:, None])"),
    ),
}
