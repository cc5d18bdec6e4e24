"""Answers that prove the check of exercise 3.14."""

from twophase_labs.machine.bank import right, wrong

EVERY, RECENT, OLDER = "reads every token", "keeps recent tokens in fp16", "keeps older tokens in int8"
BYTES, ALONE = "counts the bytes", "leaves x alone"

WHERE = """
def store_mixed(x, num_recent):
    old = torch.arange(len(x)) < len(x) - num_recent
    read = torch.where(old[:, None, None], dequantise(*quantise(x)), x.half().float())
    T, H, D = x.shape
    n = int(old.sum())
    return (read, n * H * (D + 4) + 2 * (T - n) * H * D)
"""
BOTH_WAYS = """
def store_mixed(x, num_recent):
    tokens, heads, dim = x.shape
    age = tokens - 1 - torch.arange(tokens)
    is_recent = age < num_recent
    read = torch.where(is_recent[:, None, None], x.half().float(), dequantise(*quantise(x)))
    return read, int(torch.where(is_recent, 2 * dim, dim + 4).sum()) * heads
"""

# fmt: off
BANKS = {
    "3.14": (
        wrong("recent tokens only", "torch.cat([dequantise(data, scale), recent.float()]", "recent.float(", by=EVERY),
        wrong("recent ones exact", "recent.float()", "x[first:]", by=RECENT),
        wrong("recent ones in bf16", "[first:].half", "[first:].bfloat16", by=RECENT),
        wrong("older ones in 4 bits", "(x[:first]", "(x[:first], 7", by=OLDER),
        wrong("a negative index", "max(0, len(x) - num_recent)", "-num_recent", by=OLDER),
        wrong("no scales", ".nbytes + scale", "", by=BYTES),
        wrong("a scale per token", "scale.nbytes", "4 * len(data)", by=BYTES),
        wrong("writes into x",
              "recent = x[first:].half()\n    num_bytes = data.nbytes + scale.nbytes + recent.nbytes\n    return torch.cat([dequantise(data, scale), recent.float()]), num_bytes",
              "x[:first] = dequantise(data, scale)\n    x[first:] = x[first:].half().float()\n    return (x, data.nbytes + scale.nbytes + 2 * x[first:].numel())",
              by=ALONE),
        right("where", WHERE),
        right("both ways, then chosen", BOTH_WAYS),
        right("by a count", "data.nbytes + scale.nbytes + recent.nbytes",
              "x[:first].numel() + 4 * first * x.shape[1] + 2 * x[first:].numel()"),
    ),
}
