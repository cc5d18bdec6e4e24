"""Answers that prove the check of exercise 2.12."""

from twophase_labs.machine.bank import right, wrong

ONE_HEAD, KV_HEAD, HISTORY = "reads the right slots of one head", "reads the right KV head", "sees the history"
APART, LOOP, UNUSED = "keeps sequences apart", "matches attention in a loop", "keeps unused slots out"
LSE = "gives the LSE in base 2"


# fmt: off
BANKS = {
    "2.12": (
        wrong("entries in place of pages", {4: "positions // PAGE"}, by=ONE_HEAD),
        wrong("sees the future", {6: "in_range[None, :]"}, by=ONE_HEAD),
        wrong("the heads of the first group", {1: "offs_m % G"}, by=KV_HEAD),
        wrong("positions counted from the chunk", {3: "tokens"}, by=HISTORY),
        wrong("every chunk at the start of the batch", {2: "tokens * H + heads"}, by=APART),
        wrong("positions of the first tile", {3: "num_cached + offs_m // G"}, by=LOOP),
        wrong("loads one key past the end", "positions < hi", "positions < hi + 1", by=UNUSED),
        wrong("LSE in base e", "tl.log2", "tl.log", by=LSE),
        right("a difference of positions", {6: "row_positions[:, None] - positions[None, :] >= 0"}),
        right("32-bit slots", {5: "page_ids * (H_KV * PAGE) + kv_head * PAGE + positions % PAGE"}),
    ),
}
