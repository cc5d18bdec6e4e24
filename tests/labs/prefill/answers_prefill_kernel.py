"""Answers that prove the check of exercise 2.8."""

from twophase_labs.machine.bank import right, wrong

ONE_HEAD, KV_HEAD, HISTORY = "reads the right slots of one head", "reads the right KV head", "sees the history"
APART, LOOP, UNUSED = "keeps sequences apart", "matches attention in a loop", "keeps unused slots out"
LSE, HALF, NEXT = "gives the LSE in base 2", "takes float16 as well", "leaves the next program's rows alone"
HIDDEN = "loads no tile above the diagonal"


# fmt: off
BANKS = {
    "2.8": (
        wrong("entries in place of pages", "tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)",
              "positions // PAGE", by=ONE_HEAD),
        wrong("sees the future", " & (positions[None, :] <= row_positions[:, None])", "", by=ONE_HEAD),
        wrong("the heads of the first group", "kv_head * G + offs_m % G", "offs_m % G", by=KV_HEAD),
        wrong("positions counted from the chunk", "row_positions = num_cached + tokens", "row_positions = tokens",
              by=HISTORY),
        wrong("every chunk at the start of the batch", "(chunk_start + tokens) * H", "tokens * H", by=APART),
        wrong("old sums keep their size", "acc * rescale[:, None] +", "acc +", by=LOOP),
        wrong("weights stay float32", "p.to(v.dtype)", "p", by=HALF),
        wrong("stores a token of the next program", "(offs_m < BLOCK_Q * G) & ", "", by=NEXT),
        wrong("every key tile", "tl.minimum(num_cached + first_token + BLOCK_Q, seq_len)", "seq_len", by=HIDDEN),
        wrong("loads one key past the end", "positions < hi", "positions < hi + 1", by=UNUSED),
        wrong("LSE in base e", "tl.log2", "tl.log", by=LSE),
        right("a difference of positions", "positions[None, :] <= row_positions[:, None]",
              "row_positions[:, None] - positions[None, :] >= 0"),
        right("32-bit slots", "(page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE",
              "page_ids * (H_KV * PAGE) + kv_head * PAGE + positions % PAGE"),
    ),
}
