"""Answers that prove the checks of exercise 2.12. Whole cells are edits of the kernel, whose other lines are given."""

from tests.labs.prefill.variants import kernel_cell
from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE_HEAD = "reads the right slots of one head"
KV_HEAD = "reads the right KV head"
HISTORY = "sees the history"
APART = "keeps sequences apart"
LOOP = "matches attention in a loop"
UNUSED = "keeps unused slots out"
LSE = "gives the LSE in base 2"

PAGE_IDS = "tl.load(table_ptr + positions // PAGE, mask=in_range, other=0)"
STATE = "attend_tile(q, k, v, visible, qk_scale, row_max, row_sum, acc)"
NATURAL = """s = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * (qk_scale / 1.4426950408889634), -1e30)
        m = tl.maximum(row_max, tl.max(s, axis=1))
        p, r = tl.where(visible, tl.exp(s - m[:, None]), 0.0), tl.exp(row_max - m)
        row_sum = row_sum * r + tl.sum(p, axis=1)
        acc = acc * r[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = m"""

BANKS = {
    "2.12": Bank(
        wrong=(
            Wrong("no history", kernel_cell(("num_cached = seq_len - chunk_len", "num_cached = 0")), HISTORY),
            Wrong("reads KV head h % H_kv", {1: "kv_head + offs_m % G * H_KV"}, KV_HEAD),
            Wrong("the heads of the first group", {1: "offs_m % G"}, KV_HEAD),
            Wrong("tokens and heads swapped", {1: "kv_head * G + offs_m // BLOCK_Q"}, KV_HEAD),
            Wrong("every chunk at the start of the batch", {2: "tokens * H + heads"}, APART),
            Wrong("rows as if there were no groups", {2: "(chunk_start + tokens) * H_KV + heads"}, KV_HEAD),
            Wrong("rows without heads", {2: "(chunk_start + tokens) * H"}, KV_HEAD),
            Wrong("positions counted from the chunk", {3: "tokens"}, HISTORY),
            Wrong("positions counted in the flat batch", {3: "num_cached + chunk_start + tokens"}, APART),
            Wrong("every row at the end of the sequence", {3: "seq_len - 1 + offs_m * 0"}, ONE_HEAD),
            Wrong("positions of the first tile", {3: "num_cached + offs_m // G"}, LOOP),
            Wrong("everybody's table is the first one", {4: PAGE_IDS.replace("table_ptr", "block_tables_ptr")}, APART),
            Wrong(
                "tables 16 entries wide", {4: PAGE_IDS.replace("table_ptr", "block_tables_ptr + sequence * 16")}, LOOP
            ),
            Wrong("a table entry per position", {4: PAGE_IDS.replace("positions // PAGE", "positions")}, ONE_HEAD),
            Wrong("the offset as table entry", {4: PAGE_IDS.replace("// PAGE", "% PAGE")}, ONE_HEAD),
            Wrong("the next page", {4: PAGE_IDS.replace("// PAGE", "// PAGE + 1")}, ONE_HEAD),
            Wrong("entries in place of pages", {4: "positions // PAGE"}, ONE_HEAD),
            Wrong(
                "drops the last key",
                kernel_cell(("in_range = positions < hi", "in_range = positions < hi - 1")),
                ONE_HEAD,
            ),
            Wrong(
                "loads one key past the end",
                kernel_cell(("in_range = positions < hi", "in_range = positions < hi + 1")),
                UNUSED,
            ),
            Wrong(
                "the position as offset", {5: "(page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + positions"}, ONE_HEAD
            ),
            Wrong(
                "heads behind slots", {5: "(page_ids.to(tl.int64) * PAGE + positions % PAGE) * H_KV + kv_head"}, KV_HEAD
            ),
            Wrong("no heads in a page", {5: "page_ids.to(tl.int64) * PAGE + positions % PAGE"}, KV_HEAD),
            Wrong("the position as slot", {5: "kv_head * PAGE + positions"}, ONE_HEAD),
            Wrong("pages of four", {5: "(page_ids.to(tl.int64) * H_KV + kv_head) * 4 + positions % 4"}, LOOP),
            Wrong("sees the future", {6: "in_range[None, :]"}, ONE_HEAD),
            Wrong("sees one key of the future", {6: "positions[None, :] <= row_positions[:, None] + 1"}, ONE_HEAD),
            Wrong("does not see itself", {6: "positions[None, :] < row_positions[:, None]"}, ONE_HEAD),
            Wrong(
                "sees the last 64 keys",
                {
                    6: "(positions[None, :] <= row_positions[:, None]) & (positions[None, :] > row_positions[:, None] - 64)"
                },
                LOOP,
            ),
            Wrong("no scale", kernel_cell((STATE, STATE.replace("qk_scale", "1.0"))), ONE_HEAD),
            Wrong("LSE in base e", kernel_cell(("row_max + tl.log2(row_sum)", "row_max + tl.log(row_sum)")), LSE),
            Wrong(
                "entries behind the table", {4: "tl.load(table_ptr + positions // PAGE)"}, "matches attention in a loop"
            ),
        ),
        right=(
            Right("32-bit slots", {5: "page_ids * (H_KV * PAGE) + kv_head * PAGE + positions % PAGE"}),
            Right("offsets by their bits", {5: "(page_ids * H_KV + kv_head) * PAGE + (positions & (PAGE - 1))"}),
            Right("a difference of positions", {6: "row_positions[:, None] - positions[None, :] >= 0"}),
            Right("heads written out", {1: "kv_head * G + (offs_m - offs_m // G * G)"}),
            Right("positions written out", {3: "seq_len - chunk_len + first_token + offs_m // G"}),
            Right(
                "base e within, no minus infinity",
                kernel_cell(
                    (f"row_max, row_sum, acc = {STATE}", NATURAL),
                    ("row_max + tl.log2(row_sum)", "row_max * 1.4426950408889634 + tl.log2(row_sum)"),
                ),
            ),
        ),
    ),
}
