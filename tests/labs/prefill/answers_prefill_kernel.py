"""Answers that prove the checks of exercises 2.12 and 2.13."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE_TILE = "weighs the keys of one tile"
CARRIES = "carries the state from tile to tile"
READS = "reads the right keys"
UNUSED = "keeps unused slots out"
LSE = "gives the log-sum-exp in base 2"

BANKS = {
    "2.12": Bank(
        wrong=(
            Wrong("no scale", {1: 'tl.dot(q, tl.trans(k), input_precision="ieee")'}, ONE_TILE),
            Wrong("keys not transposed", {1: 'tl.dot(q, k, input_precision="ieee") * qk_scale'}, ONE_TILE),
            Wrong("e instead of 2", {5: "tl.exp(scores - max_safe[:, None])"}, ONE_TILE),
            Wrong("e throughout", {5: "tl.exp(scores - max_safe[:, None])", 6: "tl.exp(row_max - max_safe)"}, ONE_TILE),
            Wrong("sums over the queries", {7: "row_sum * rescale + tl.sum(p, axis=0)"}, ONE_TILE),
            Wrong("the factor upside down", {6: "tl.exp2(max_safe - row_max)"}, ONE_TILE),
            Wrong("no mask", {2: "scores"}, "hides what is masked"),
            Wrong("zero instead of minus infinity", {2: "tl.where(visible, scores, 0.0)"}, "hides what is masked"),
            Wrong("the mask upside down", {2: 'tl.where(visible, float("-inf"), scores)'}, ONE_TILE),
            Wrong("the maximum of this tile only", {3: "tl.max(scores, axis=1)"}, CARRIES),
            Wrong("no maximum in the weights", {5: "tl.exp2(scores)"}, CARRIES),
            Wrong("nothing rescaled", {6: "row_max * 0.0 + 1.0"}, ONE_TILE),
            Wrong("the old sum not rescaled", {7: "row_sum + tl.sum(p, axis=1)"}, CARRIES),
            Wrong("the old sum forgotten", {7: "tl.sum(p, axis=1)"}, CARRIES),
            Wrong("the old values not rescaled", {8: "acc"}, CARRIES),
            Wrong("the old values forgotten", {8: "acc * 0.0"}, CARRIES),
            Wrong("NaN in rows that saw nothing", {4: "new_max"}, "leaves rows alone that see nothing"),
            Wrong(
                "no maximum at all",
                {4: "tl.zeros_like(new_max)", 6: 'tl.where(row_max == float("-inf"), 0.0, 1.0)'},
                "keeps the log-sum-exp in base 2",
            ),
        ),
        right=(
            Right("a finite floor under the maximum", {4: "tl.maximum(new_max, -1e30)"}),
            Right("the scale on the queries", {1: 'tl.dot(q * qk_scale, tl.trans(k), input_precision="ieee")'}),
            Right("a guard on the factor", {6: 'tl.where(row_max == float("-inf"), 0.0, tl.exp2(row_max - new_max))'}),
            Right("the mask added", {2: 'scores + tl.where(visible, 0.0, float("-inf"))'}),
        ),
    ),
    "2.13": Bank(
        wrong=(
            Wrong("no history", {1: "0"}, READS),
            Wrong("the whole sequence as history", {1: "seq_len"}, READS),
            Wrong("reads KV head h % H_kv", {2: "kv_head + offs_m % G * H_KV"}, READS),
            Wrong("the heads of the first group", {2: "offs_m % G"}, READS),
            Wrong("tokens and heads exchanged", {2: "kv_head * G + offs_m // BLOCK_Q"}, READS),
            Wrong("rows beyond the chunk", {3: "(tokens >= 0)"}, READS),
            Wrong("one row too few", {3: "(tokens < chunk_len - 1)"}, READS),
            Wrong("every chunk at the start of the batch", {4: "tokens * H + heads"}, READS),
            Wrong("rows as if there were no groups", {4: "(chunk_start + tokens) * H_KV + heads"}, READS),
            Wrong("positions counted from the chunk", {5: "tokens"}, READS),
            Wrong("every row at the end of the sequence", {5: "seq_len - 1 + offs_m * 0"}, READS),
            Wrong("everybody's table is the first one", {6: "block_tables_ptr"}, READS),
            Wrong("drops the last key", {7: "positions < hi - 1"}, READS),
            Wrong("loads one key past the end", {7: "positions < hi + 1"}, UNUSED),
            Wrong("loads the whole last tile", {7: "positions >= 0"}, UNUSED),
            Wrong("a table entry per position", {8: "positions"}, READS),
            Wrong("the offset as table entry", {8: "positions % PAGE"}, READS),
            Wrong("the next page", {8: "positions // PAGE + 1"}, READS),
            Wrong("the position as offset", {9: "positions"}, READS),
            Wrong("heads behind slots", {10: "(page_ids.to(tl.int64) * PAGE + offsets) * H_KV + kv_head"}, READS),
            Wrong("no heads in a page", {10: "page_ids.to(tl.int64) * PAGE + offsets"}, READS),
            Wrong("the position as slot", {10: "kv_head * PAGE + positions"}, READS),
            Wrong("sees the future", {11: "in_range[None, :]"}, READS),
            Wrong("sees one key of the future", {11: "positions[None, :] <= row_positions[:, None] + 1"}, READS),
            Wrong("does not see itself", {11: "positions[None, :] < row_positions[:, None]"}, READS),
            Wrong("no scale", {12: "attend_tile(q, k, v, visible, 1.0, row_max, row_sum, acc)"}, READS),
            Wrong("values as keys", {12: "attend_tile(q, v, k, visible, qk_scale, row_max, row_sum, acc)"}, READS),
            Wrong("not normalised", {13: "acc"}, READS),
            Wrong("log-sum-exp in base e", {14: "(row_max + tl.log2(row_sum)) * 0.6931471805599453"}, LSE),
            Wrong("bases mixed", {14: "row_max + tl.log(row_sum)"}, LSE),
            Wrong("the maximum left out", {14: "tl.log2(row_sum)"}, LSE),
        ),
        right=(
            Right("32-bit slots", {10: "page_ids * (H_KV * PAGE) + kv_head * PAGE + positions % PAGE"}),
            Right("offsets by their bits", {9: "positions & (PAGE - 1)"}),
            Right("a difference of positions", {11: "row_positions[:, None] - positions[None, :] >= 0"}),
            Right("one division per row", {13: "acc * (1.0 / row_sum)[:, None]"}),
            Right("positions written out", {5: "seq_len - chunk_len + first_token + offs_m // G"}),
        ),
    ),
}
