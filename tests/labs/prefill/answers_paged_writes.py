"""Answers that prove the checks of exercises 2.8 and 2.9."""

from twophase_labs.machine.bank import right, wrong

GIVES_AN, FINDS_BLOCK, STARTS_ANYWHERE = "gives an int64 per position", "finds block and offset", "starts anywhere"
SURVIVES_LARGE, SURVIVES_LONG = "survives large pools", "survives long sequences"
LEAVES_THE, KEEPS_NOTHING = "leaves the table alone", "keeps nothing for the next call"
WRITES_EACH, SKIPS_TOKENS = "writes each token to its slot", "skips tokens without a slot"
TAKES_ANY = "takes any number and size of heads"

WRITES_INTO_THE_TABLE = """
positions = torch.arange(start, end)
slots = block_table[positions // block_size].long() * block_size + positions % block_size
block_table.mul_(block_size)
return slots
"""
REMEMBERS_SLOTS_BY_THEIR = """
_kept = {}
def slot_mapping(block_table, start, end, block_size):
    key = start, end, block_size
    if key not in _kept:
        p = torch.arange(start, end)
        _kept[key] = block_table[p // block_size].long() * block_size + p % block_size
    return _kept[key]
"""
A_BLOCK_AT_A = """
def slot_mapping(block_table, start, end, block_size):
    pieces, p = [torch.empty(0, dtype=torch.long)], start
    while p < end:
        stop = min(end, (p // block_size + 1) * block_size)
        base = int(block_table[p // block_size]) * block_size
        pieces.append(torch.arange(base + p % block_size, base + p % block_size + stop - p))
        p = stop
    return torch.cat(pieces)
"""

# fmt: off
BANKS = {
    "2.8": (
        wrong("floats where there is no position",
              {1: "return torch.tensor([int(block_table[p // block_size]) * block_size + p % block_size for p in range(start, end)])"},
              by=GIVES_AN),
        wrong("adds the page instead of multiplying", "blocks * block_size", "blocks", by=FINDS_BLOCK),
        wrong("pages that are powers of two", "% block_size", "& block_size - 1", by=FINDS_BLOCK),
        wrong("counts from zero",
              {1: "positions = torch.arange(end - start)\nreturn block_table[positions // block_size].long() * block_size + positions % block_size"},
              by=STARTS_ANYWHERE),
        wrong("multiplies in 32 bits", "[positions // block_size].long()", "[positions // block_size]",
              by=SURVIVES_LARGE),
        wrong("a quotient in float32",
              {1: "p = torch.arange(start, end)\nb = (p.float() / block_size).floor().long()\nreturn block_table[b].long() * block_size + p % block_size"},
              by=SURVIVES_LONG),
        wrong("writes into the table", {1: WRITES_INTO_THE_TABLE}, by=LEAVES_THE),
        wrong("remembers slots by their positions", REMEMBERS_SLOTS_BY_THEIR, by=KEEPS_NOTHING),
        right("all slots, then a slice",
              {1: "every = block_table.long()[:, None] * block_size + torch.arange(block_size)\nreturn every.flatten()[start:end]"}),
        right("a block at a time", A_BLOCK_AT_A),
        right("a loop",
              {1: "slots = [block_table[p // block_size].item() * block_size + p % block_size for p in range(start, end)]\nreturn torch.tensor(slots, dtype=torch.int64)"}),
    ),
    "2.9": (
        wrong("always the first token", {3: "offs_h"}, by=WRITES_EACH),
        wrong("tokens overlap", {3: "token + offs_h"}, by=WRITES_EACH),
        wrong("the slot as offset", "slot % PAGE", "slot", by=WRITES_EACH),
        wrong("never skips", {1: "slot < -(10**9)"}, by=SKIPS_TOKENS),
        wrong("tokens without a slot go to slot 0", "if slot < 0:\n        return", "slot = tl.maximum(slot, 0)",
              by=SKIPS_TOKENS),
        wrong("no mask for heads", "< H_KV", ">= 0", by=TAKES_ANY),
        wrong("no mask for dims", "offs_d < D", "offs_d >= 0", by=TAKES_ANY),
        wrong("pages of four", {4: "(slot // 4 * H_KV + offs_h) * 4 + slot % 4"}, by=TAKES_ANY),
        right("written out", {4: "slot // PAGE * (H_KV * PAGE) + offs_h * PAGE + slot % PAGE"}),
        right("the other way round", {1: "slot <= -1", 3: "offs_h + H_KV * token"}),
    ),
}
