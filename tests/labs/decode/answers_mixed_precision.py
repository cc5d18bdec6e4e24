"""Answers that prove the check of exercise 3.14."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

EVERY, RECENT, OLDER, BYTES, ALONE = (
    "reads every token",
    "keeps recent tokens in fp16",
    "keeps older tokens in int8",
    "counts the bytes",
    "leaves x alone",
)
TOKEN_BY_TOKEN = """
def store_mixed(x, num_recent):
    read, num_bytes = torch.empty(x.shape), 0
    tokens, heads, dim = x.shape
    for t in range(tokens):
        if tokens - t <= num_recent:
            read[t] = x[t].half()
            num_bytes += 2 * heads * dim
        else:
            read[t] = dequantise(*quantise(x[t : t + 1]))[0]
            num_bytes += heads * dim + 4 * heads
    return read, num_bytes
"""
BOTH_WAYS = """
def store_mixed(x, num_recent):
    tokens, heads, dim = x.shape
    age = tokens - 1 - torch.arange(tokens)
    is_recent = age < num_recent
    read = torch.where(is_recent[:, None, None], x.half().float(), dequantise(*quantise(x)))
    return read, int(torch.where(is_recent, 2 * dim, dim + 4).sum()) * heads
"""
IN_PLACE = """
def store_mixed(x, num_recent):
    first = max(0, len(x) - num_recent)
    data, scale = quantise(x[:first])
    x[:first] = dequantise(data, scale)
    x[first:] = x[first:].half().float()
    return x, data.nbytes + scale.nbytes + 2 * x[first:].numel()
"""

BANKS = {
    "3.14": Bank(
        wrong=(
            Wrong("a negative index", {1: "-num_recent"}, OLDER),
            Wrong("recent tokens only", {5: "recent.float()"}, EVERY),
            Wrong(
                "the first tokens are recent",
                {
                    2: "quantise(x[num_recent:])",
                    3: "x[:num_recent].half()",
                    5: "torch.cat([recent.float(), dequantise(data, scale)])",
                },
                RECENT,
            ),
            Wrong("recent tokens in front", {5: "torch.cat([recent.float(), dequantise(data, scale)])"}, RECENT),
            Wrong("all in int8", {5: "dequantise(*quantise(x))"}, RECENT),
            Wrong("all in fp16", {5: "x.half().float()"}, OLDER),
            Wrong("recent ones exact", {5: "torch.cat([dequantise(data, scale), x[first:]])"}, RECENT),
            Wrong("recent ones in bf16", {3: "x[first:].bfloat16()"}, RECENT),
            Wrong("at least one is recent", {1: "max(0, len(x) - max(1, num_recent))"}, OLDER),
            Wrong("at most 64 are recent", {1: "max(0, len(x) - min(64, num_recent))"}, RECENT),
            Wrong("older ones in 4 bits", {2: "quantise(x[:first], 7)"}, OLDER),
            Wrong("no scales", {4: "data.nbytes + recent.nbytes"}, BYTES),
            Wrong("elements, not bytes", {4: "x.numel()"}, BYTES),
            Wrong("a scale per token", {4: "data.nbytes + 4 * len(data) + recent.nbytes"}, BYTES),
            Wrong("recent ones as they are read", {4: "data.nbytes + scale.nbytes + 2 * recent.nbytes"}, BYTES),
            Wrong("writes into x", IN_PLACE, ALONE),
        ),
        right=(
            Right("a token at a time", TOKEN_BY_TOKEN),
            Right("both ways, then chosen", BOTH_WAYS),
            Right("by a count", {4: "x[:first].numel() + 4 * first * x.shape[1] + 2 * x[first:].numel()"}),
        ),
    ),
}
BANKS = opened_all(BANKS)
