"""Answers that prove the checks of exercises 3.9 and 3.10."""

from twophase_labs.machine.bank import right, wrong

SHARES, PLACE, EMPTY = "shares out the keys", "stores each row in its place", "says when it has no keys"
COUNTS, WHOLE, KEEPS_THE = "counts its keys", "adds up to the whole", "keeps the level of the scores"
ROWS, WEIGHS = "gives a row per query head", "weighs splits by their keys"
HEADS, SKIPS, NOTHING = "weighs each head's splits by themselves", "skips empty splits", "gives nothing for nothing"
MERGES, SURVIVES_ANY, ALONE = "merges what attention gives", "survives any level of scores", "leaves its inputs alone"
GIVES_RESULTS = "gives results of its own"

BY_SOFTMAX_IN_FLOAT64 = """
ln2 = math.log(2)
weights = torch.softmax(lse.double() * ln2, -1).nan_to_num(0.0)
out = torch.einsum('bhs,bhsd->bhd', weights, partial.double().nan_to_num(0.0))
return (out.float(), (torch.logsumexp(lse.double() * ln2, -1) / ln2).float())
"""
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

# fmt: off
BANKS = {
    "3.9": (
        wrong("every split begins at 0", {2: "0"}, by=SHARES),
        wrong("at most 4 splits", {1: "tl.cdiv(tl.cdiv(seq_len, BLOCK_N), tl.minimum(num_splits, 4)) * BLOCK_N"},
              by=SHARES),
        wrong("wrong head map", "kv_head, lo", "(kv_head + 1) % H_KV, lo", by=PLACE),
        wrong("NaN from empty splits", {4: "row_sum"}, by=EMPTY),
        wrong("the maximum only", {5: "row_max"}, by=COUNTS),
        wrong("LSE in base e", "tl.log2", "tl.log", by=COUNTS),
        wrong("LSE without the maximum", {5: "tl.log2(sum_safe) + tl.where(row_max > float('-inf'), 0.0, row_max)"},
              by=WHOLE),
        wrong("maximum inside of the logarithm", "row_max + tl.log2(sum_safe", "tl.log2(sum_safe * tl.exp2(row_max)",
              by=KEEPS_THE),
        right("cdiv of the product", ".cdiv(tl.cdiv(seq_len, BLOCK_N),", ".cdiv(seq_len, BLOCK_N *",
              "split * split_len", "tl.minimum(split * split_len, seq_len)"),
        right("the last split takes what is left",
              {3: "tl.where(split == num_splits - 1, seq_len, tl.minimum(lo + split_len, seq_len))"}),
    ),
    "3.10": (
        wrong("keeps the axis of the splits",
              "(weights[..., None] * partial).sum(-2) / torch.where(total == 0, 1.0, total)[..., None]",
              "weights[..., None] * partial", by=ROWS),
        wrong("weights in base e", "torch.exp2", "torch.exp", by=WEIGHS),
        wrong("one sum for all heads", ".sum(-1", ".sum((1, 2))[:, None].expand(lse.shape[:2]", by=HEADS),
        wrong("reads what empty splits left", "torch.where(weights[..., None] > 0, partial, 0.0)", "partial", by=SKIPS),
        wrong("NaN from empty rows", "torch.where(m.isneginf(), 0.0, m)", "m", by=NOTHING),
        wrong("LSE in base e", "total.log2", "total.log", by=MERGES),
        wrong("a maximum of at least -1e4", "torch.where(m.isneginf(), 0.0, m", "m.clamp(min=-10000.0",
              by=SURVIVES_ANY),
        wrong("clears empty rows in place", "m = lse.amax(-1, keepdim=True)",
              "partial[lse.isneginf()] = 0\n    m = lse.amax(-1, keepdim=True)",
              "partial = torch.where(weights[..., None] > 0, partial, 0.0)", "pass", by=ALONE),
        wrong("a single split handed through", "m = lse.amax(-1, keepdim=True)",
              "if lse.shape[-1] == 1 and (not lse.isinf().any()):\n        return (partial[:, :, 0], lse[:, :, 0])\n    m = lse.amax(-1, keepdim=True)",
              by=GIVES_RESULTS),
        right("by softmax, in float64", {1: BY_SOFTMAX_IN_FLOAT64}),
        right("a split after the other", SPLIT_BY_SPLIT),
    ),
}
