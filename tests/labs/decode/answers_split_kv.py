"""Answers that prove the checks of exercises 3.11 and 3.12."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SPLIT_HEAD = """
@triton.jit
def paged_decode_split_kernel(
    q_ptr, k_ptr, v_ptr, block_tables_ptr, seq_lens_ptr, out_ptr, lse_ptr, qk_scale, table_row_stride,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    row_q = sequence * H + kv_head * (H // H_KV) + offs_m
    there = offs_m < H // H_KV
    mask = there[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + row_q[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    table_ptr = block_tables_ptr + sequence * table_row_stride
    tiles = (tl.load(seq_lens_ptr + sequence) + BLOCK_N - 1) // BLOCK_N
    per_split = (tiles + tl.num_programs(2) - 1) // tl.num_programs(2)
    lo = split * per_split * BLOCK_N
    hi = tl.minimum(lo + per_split * BLOCK_N, tl.load(seq_lens_ptr + sequence))
"""
# The maximum per split is taken out of the sum only at the end; empty splits are told by their bounds.
BY_BOUNDS = (
    SPLIT_HEAD
    + """
    m, l, acc = attend_tiles(
        q, table_ptr, k_ptr, v_ptr, qk_scale, kv_head, lo, hi, H_KV, D, PAGE, BLOCK_M, BLOCK_D, BLOCK_N
    )
    empty = hi <= lo
    out = tl.where(empty, 0.0, acc / tl.where(empty, 1.0, l)[:, None])
    lse = tl.where(empty, float("-inf"), m + tl.log2(tl.where(empty, 1.0, l)))
    row = row_q * tl.num_programs(2) + split
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], out, mask=mask)
    tl.store(lse_ptr + row, lse, mask=there)
"""
)


def changed(kernel: str, old: str, new: str) -> str:
    if old not in kernel:
        raise ValueError(f"{old!r} is not in the kernel")
    return kernel.replace(old, new)


STALE_TABLE = changed(BY_BOUNDS, "block_tables_ptr + sequence * table_row_stride", "block_tables_ptr")
WRONG_HEAD_MAP = changed(BY_BOUNDS, "qk_scale, kv_head, lo", "qk_scale, (kv_head + 1) % H_KV, lo")
MISSING_SCALE = changed(BY_BOUNDS, "v_ptr, qk_scale, kv_head", "v_ptr, 1.0, kv_head")
NOT_DIVIDED = changed(BY_BOUNDS, "acc / tl.where(empty, 1.0, l)[:, None]", "acc")
NO_LSE_STORED = changed(BY_BOUNDS, "    tl.store(lse_ptr + row, lse, mask=there)\n", "")
EMPTY_WRITES_NOTHING = changed(
    changed(BY_BOUNDS, "mask=mask)\n    tl.store", "mask=mask & (hi > lo))\n    tl.store"),
    "lse, mask=there",
    "lse, mask=there & (hi > lo)",
)

MERGE = """
@triton.jit
def merge_splits_kernel(
    partial_ptr, partial_lse_ptr, out_ptr, lse_ptr, num_splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):
    row = tl.program_id(0)
    offs_d = tl.arange(0, BLOCK_D)
"""
# A split after the other, as an online softmax over splits.
SPLIT_BY_SPLIT = (
    MERGE
    + """
    one = tl.arange(0, 1)
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for s in range(0, num_splits):
        lse = tl.load(partial_lse_ptr + row * num_splits + s + one)
        new_m = tl.maximum(m, lse)
        safe = tl.where(new_m == float("-inf"), 0.0, new_m)
        old, weight = tl.exp2(m - safe), tl.exp2(lse - safe)
        mask = (offs_d < D) & (lse > float("-inf"))
        acc = acc * old + weight * tl.load(partial_ptr + (row * num_splits + s) * D + offs_d, mask=mask, other=0.0)
        total = total * old + weight
        m = new_m
    total_safe = tl.where(total == 0, 1.0, total)
    tl.store(out_ptr + row * D + offs_d, acc / total_safe, mask=offs_d < D)
    tl.store(lse_ptr + row + one, m + tl.log2(total_safe))
"""
)
SHARES_FIRST = (
    MERGE
    + """
    offs_s = tl.arange(0, BLOCK_S)
    lse = tl.load(partial_lse_ptr + row * num_splits + offs_s, mask=offs_s < num_splits, other=-float("inf"))
    m = tl.maximum(tl.max(lse, axis=0), -1e30)
    total = tl.sum(tl.exp2(lse - m), axis=0)
    share = tl.exp2(lse - m) / tl.maximum(total, 1e-30)
    mask = (share > 0)[:, None] & (offs_d < D)[None, :]
    part = tl.load(partial_ptr + (row * num_splits + offs_s)[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + row * D + offs_d, tl.sum(share[:, None] * part, axis=0), mask=offs_d < D)
    tl.store(lse_ptr + row, tl.where(total == 0, float("-inf"), m + tl.log2(tl.maximum(total, 1e-30))))
"""
)
FIRST_SPLIT_ONLY = changed(SPLIT_BY_SPLIT, "range(0, num_splits)", "range(0, 1)")
DROPS_THE_LAST_SPLIT = changed(SPLIT_BY_SPLIT, "range(0, num_splits)", "range(0, num_splits - 1)")

SHARES, PLACE, EMPTY = "shares out the keys", "stores each row in its place", "says when it has no keys"
COUNTS, WHOLE = "counts its keys", "adds up to the whole"
WEIGHS, LANES, SKIPS = "weighs splits by their keys", "ignores lanes without a split", "skips empty splits"
NOTHING, MERGES = "gives nothing for nothing", "merges what attention gives"

BANKS = {
    "3.11": Bank(
        wrong=(
            Wrong("tiles divided, rounded down", {1: "tl.cdiv(seq_len, BLOCK_N) // num_splits * BLOCK_N"}, SHARES),
            Wrong("tiles counted, rounded down", {1: "tl.cdiv(seq_len // BLOCK_N, num_splits) * BLOCK_N"}, SHARES),
            Wrong("in tiles, not in keys", {1: "tl.cdiv(tl.cdiv(seq_len, BLOCK_N), num_splits)"}, SHARES),
            Wrong("a tile for each split", {1: "BLOCK_N"}, SHARES),
            Wrong("every split begins at 0", {2: "0"}, SHARES),
            Wrong("splits a tile apart", {2: "split * BLOCK_N"}, SHARES),
            Wrong("one past the end", {3: "tl.minimum(lo + split_len, seq_len + 1)"}, SHARES),
            Wrong("dropped last token", {3: "tl.minimum(lo + split_len, seq_len - 1)"}, SHARES),
            Wrong("the last key of every split dropped", {3: "tl.minimum(lo + split_len - 1, seq_len)"}, SHARES),
            Wrong("unmasked tail", {3: "lo + split_len"}, SHARES),
            Wrong("every split reads to the end", {3: "seq_len"}, SHARES),
            Wrong("NaN from empty splits", {4: "row_sum"}, EMPTY),
            Wrong("0 as an empty split's LSE", {5: "tl.where(row_sum == 0, 0.0, row_max + tl.log2(sum_safe))"}, EMPTY),
            Wrong("an empty split writes nothing", EMPTY_WRITES_NOTHING, EMPTY),
            Wrong("LSE in base e", {5: "row_max + tl.log(sum_safe)"}, COUNTS),
            Wrong("the sum without its logarithm", {5: "row_max + sum_safe"}, COUNTS),
            Wrong("the maximum only", {5: "row_max"}, COUNTS),
            Wrong("the LSE is not stored", NO_LSE_STORED, EMPTY),
            Wrong(
                "LSE without the maximum",
                {5: "tl.log2(sum_safe) + tl.where(row_max > float('-inf'), 0.0, row_max)"},
                WHOLE,
            ),
            Wrong("split before head", {6: "(sequence * num_splits + split) * H + kv_head * G + offs_m"}, PLACE),
            Wrong("no row of its own", {6: "query_rows"}, SHARES),
            Wrong("stale page: the first sequence's table", STALE_TABLE, SHARES),
            Wrong("wrong head map", WRONG_HEAD_MAP, PLACE),
            Wrong("missing scale", MISSING_SCALE, WHOLE),
            Wrong("not divided", NOT_DIVIDED, SHARES),
        ),
        right=(
            Right("told by its bounds", BY_BOUNDS),
            Right(
                "the last split takes what is left",
                {3: "tl.where(split == num_splits - 1, seq_len, tl.minimum(lo + split_len, seq_len))"},
            ),
            Right("the sum never below something tiny", {4: "tl.maximum(row_sum, 1e-30)"}),
        ),
    ),
    "3.12": Bank(
        wrong=(
            Wrong("a plain mean", {3: "tl.where(offs_s < num_splits, 1.0, 0.0)"}, WEIGHS),
            Wrong("a plain sum", {3: "tl.where(offs_s < num_splits, 1.0, 0.0)", 5: "tl.sum(partial, axis=0)"}, WEIGHS),
            Wrong("weights in base e", {3: "tl.exp(lse - m_safe)"}, WEIGHS),
            Wrong("the LSEs as weights", {3: "tl.where(offs_s < num_splits, lse - m_safe + 1, 0.0)"}, WEIGHS),
            Wrong("the largest split only", {3: "tl.where(lse == m, 1.0, 0.0)"}, WEIGHS),
            Wrong("the first split only", FIRST_SPLIT_ONLY, WEIGHS),
            Wrong("drops the last split", DROPS_THE_LAST_SPLIT, WEIGHS),
            Wrong("not divided", {5: "tl.sum(weight[:, None] * partial, axis=0)"}, WEIGHS),
            Wrong(
                "divided by the number of splits", {5: "tl.sum(weight[:, None] * partial, axis=0) / num_splits"}, WEIGHS
            ),
            Wrong(
                "a weight for lanes that are not there",
                {1: "tl.load(lse_ptrs, mask=offs_s < num_splits, other=0.0)"},
                LANES,
            ),
            Wrong("lanes without a mask", {1: "tl.load(lse_ptrs)"}, LANES),
            Wrong("reads what empty splits left", {4: "offs_s < num_splits"}, SKIPS),
            Wrong("NaN from empty splits", {2: "m"}, NOTHING),
            Wrong("LSE in base e", {6: "m + tl.log(total_safe)"}, MERGES),
            Wrong("the largest LSE", {6: "m"}, MERGES),
            Wrong("LSE without the maximum", {6: "tl.where(m == float('-inf'), m, tl.log2(total_safe))"}, MERGES),
            Wrong("no maximum", {2: "0.0", 6: "tl.log2(total)"}, MERGES),
        ),
        right=(
            Right("a split after the other", SPLIT_BY_SPLIT),
            Right("shares first", SHARES_FIRST),
            Right(
                "masked after loading",
                {
                    1: "tl.load(lse_ptrs, mask=offs_s < num_splits, other=0.0) "
                    '+ tl.where(offs_s < num_splits, 0.0, float("-inf"))'
                },
            ),
            Right("a clamp for the maximum", {2: "tl.maximum(m, -1e30)"}),
        ),
    ),
}
