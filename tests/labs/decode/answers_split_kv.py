"""Answers that prove the checks of exercises 3.11 and 3.12."""

from tests.labs.decode.whole import opened_all
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
SPLIT_BEFORE_HEAD = changed(
    BY_BOUNDS,
    "row_q * tl.num_programs(2) + split",
    "(sequence * tl.num_programs(2) + split) * H + kv_head * (H // H_KV) + offs_m",
)
NO_ROW = changed(BY_BOUNDS, "row_q * tl.num_programs(2) + split", "row_q")
EMPTY_WRITES_NOTHING = changed(
    changed(BY_BOUNDS, "mask=mask)\n    tl.store", "mask=mask & (hi > lo))\n    tl.store"),
    "lse, mask=there",
    "lse, mask=there & (hi > lo)",
)

# A split after the other, as an online softmax over splits.
SPLIT_BY_SPLIT = """
def merge_splits(partial, lse):
    out, total = torch.zeros_like(partial[:, :, 0]), torch.full_like(lse[:, :, 0], -torch.inf)
    for s in range(lse.shape[-1]):
        new = torch.logaddexp2(total, lse[:, :, s])
        safe = torch.where(new.isneginf(), torch.zeros_like(new), new)
        part = torch.where(lse[:, :, s, None] > -torch.inf, partial[:, :, s], torch.zeros_like(out))
        out = out * torch.exp2(total - safe)[..., None] + part * torch.exp2(lse[:, :, s] - safe)[..., None]
        total = new
    return out, total
"""
BY_SOFTMAX = """
def merge_splits(partial, lse):
    ln2 = math.log(2)
    weights = torch.softmax(lse.double() * ln2, -1).nan_to_num(0.0)
    out = torch.einsum("bhs,bhsd->bhd", weights, partial.double().nan_to_num(0.0))
    return out.float(), (torch.logsumexp(lse.double() * ln2, -1) / ln2).float()
"""
LOOPS = """
def merge_splits(partial, lse):
    B, H, S, D = partial.shape
    out, total = torch.zeros(B, H, D), torch.full((B, H), float("-inf"))
    for b in range(B):
        for h in range(H):
            there = [s for s in range(S) if lse[b, h, s] > float("-inf")]
            if there:
                m = max(lse[b, h, s] for s in there)
                weights = [2 ** (lse[b, h, s] - m) for s in there]
                out[b, h] = sum(w * partial[b, h, s] for w, s in zip(weights, there)) / sum(weights)
                total[b, h] = m + sum(weights).log2()
    return out, total
"""
IN_PLACE = """
def merge_splits(partial, lse):
    partial[lse.isneginf()] = 0
    m = lse.amax(-1, keepdim=True)
    m = torch.where(m.isneginf(), 0.0, m)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    out = (weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]
    return out, m[..., 0] + total.log2()
"""
ONE_MAXIMUM_IF_ALL_ARE_EMPTY = """
def merge_splits(partial, lse):
    if lse.isneginf().all():
        return torch.zeros_like(partial[:, :, 0]), lse[:, :, 0].clone()
    m = lse.amax(-1, keepdim=True)
    weights = torch.exp2(lse - m)
    total = weights.sum(-1)
    partial = torch.where(weights[..., None] > 0, partial, 0.0)
    return (weights[..., None] * partial).sum(-2) / total[..., None], m[..., 0] + total.log2()
"""

SHARES, PLACE, EMPTY = "shares out the keys", "stores each row in its place", "says when it has no keys"
COUNTS, WHOLE = "counts its keys", "adds up to the whole"
ROWS, WEIGHS, HEADS = (
    "gives a row per query head",
    "weighs splits by their keys",
    "weighs each head's splits by themselves",
)
SKIPS, NOTHING, MERGES, ALONE = (
    "skips empty splits",
    "gives nothing for nothing",
    "merges what attention gives",
    "leaves its inputs alone",
)

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
            Wrong("split before head", SPLIT_BEFORE_HEAD, PLACE),
            Wrong("no row of its own", NO_ROW, SHARES),
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
            Wrong("a plain mean", {3: "torch.ones_like(lse)"}, WEIGHS),
            Wrong("a plain sum", {3: "torch.ones_like(lse)", 6: "partial.sum(-2)"}, WEIGHS),
            Wrong("weights in base e", {3: "torch.exp(lse - m)"}, WEIGHS),
            Wrong("the LSEs as weights", {3: "(lse - m + 1).clamp(min=0)"}, WEIGHS),
            Wrong("the largest split only", {3: "(lse == m).float()"}, WEIGHS),
            Wrong("the first split only", {6: "partial[:, :, 0]"}, WEIGHS),
            Wrong("not divided", {6: "(weights[..., None] * partial).sum(-2)"}, WEIGHS),
            Wrong("divided by the number of splits", {6: "(weights[..., None] * partial).mean(-2)"}, WEIGHS),
            Wrong("one sum for all heads", {4: "weights.sum((1, 2))[:, None].expand(lse.shape[:2])"}, HEADS),
            Wrong("merges the elements", {6: "(weights[..., None] * partial).sum(-1)"}, ROWS),
            Wrong("keeps the axis of the splits", {6: "weights[..., None] * partial"}, ROWS),
            Wrong("reads what empty splits left", {5: "partial"}, SKIPS),
            Wrong(
                "every NaN is empty, one in 16", {5: "partial[:, :, :16]", 3: "torch.exp2(lse - m)[:, :, :16]"}, HEADS
            ),
            Wrong("NaN from empty rows", {2: "m"}, NOTHING),
            Wrong("0 / 0 for empty rows", {6: "(weights[..., None] * partial).sum(-2) / total[..., None]"}, NOTHING),
            Wrong("asks only whether all rows are empty", ONE_MAXIMUM_IF_ALL_ARE_EMPTY, NOTHING),
            Wrong("an LSE of 0 for nothing", {7: "m[..., 0] + torch.where(total == 0, 1.0, total).log2()"}, NOTHING),
            Wrong("LSE in base e", {7: "m[..., 0] + total.log()"}, MERGES),
            Wrong("the largest LSE", {7: "lse.amax(-1)"}, MERGES),
            Wrong("LSE without the maximum", {7: "total.log2()"}, MERGES),
            Wrong("no maximum", {2: "torch.zeros_like(m)"}, MERGES),
            Wrong("a maximum of at least -1e4", {2: "m.clamp(min=-1e4)"}, "survives any level of scores"),
            Wrong("clears empty rows in place", IN_PLACE, ALONE),
        ),
        right=(
            Right("a split after the other", SPLIT_BY_SPLIT),
            Right("by softmax, in float64", BY_SOFTMAX),
            Right("loops", LOOPS),
            Right("a clamp for the maximum", {2: "m.clamp(min=-1e30)"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
