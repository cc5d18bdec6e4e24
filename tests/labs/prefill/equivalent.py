"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "2.2": {
        "pairs = num_tokens * (num_tokens + 1) // 2 -> pairs = num_tokens * (num_tokens + 1) / 2": (
            "one of two neighbours is even"
        ),
    },
    "2.4": {
        "out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None] -> out = acc / torch.where(row_sum == 0, 2, row_sum)[:, None]": (
            "where the sum is 0 so is what is divided"
        ),
        "max_safe = new_max.masked_fill(new_max == -torch.inf, 0) -> max_safe = new_max.masked_fill(new_max == -torch.inf, 1)": (
            "minus infinity less any number is minus infinity"
        ),
        "max_safe = new_max.masked_fill(new_max == -torch.inf, 0) -> max_safe = new_max.masked_fill(new_max == -torch.inf, -1)": (
            "minus infinity less any number is minus infinity"
        ),
    },
    "2.5": {
        "out = out / torch.where(total == 0, 1, total)[:, None] -> out = out / torch.where(total == 0, 2, total)[:, None]": (
            "where the sum is 0 so is what is divided"
        ),
        "m = m.masked_fill(m == -torch.inf, 0) -> m = m.masked_fill(m == -torch.inf, 1)": (
            "minus infinity less any number is minus infinity"
        ),
        "m = m.masked_fill(m == -torch.inf, 0) -> m = m.masked_fill(m == -torch.inf, -1)": (
            "minus infinity less any number is minus infinity"
        ),
    },
    "2.6": {
        "hidden = torch.arange(at, at + len(k)) > rows[:, None] -> hidden = torch.arange(at, at + len(v)) > rows[:, None]": (
            "a tile has as many keys as values"
        ),
    },
    "2.11": {
        "block_size, seq_len = (k_cache.shape[2], num_cached + len(q)) -> block_size, seq_len = (k_cache.shape[2], num_cached + len(k))": (
            "a chunk has as many keys as queries"
        ),
        "block_size, seq_len = (k_cache.shape[2], num_cached + len(q)) -> block_size, seq_len = (k_cache.shape[2], num_cached + len(v))": (
            "a chunk has as many values as queries"
        ),
    },
    "2.12": {
        "page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0) -> page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=1)": (
            "K and V are not loaded there"
        ),
        "page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0) -> page_ids = tl.load(table_ptr + positions // PAGE, mask=in_range, other=-1)": (
            "K and V are not loaded there"
        ),
        "kv_rows = (page_ids.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE -> kv_rows = (page_ids.to(tl.int32) * H_KV + kv_head) * PAGE + positions % PAGE": (
            "differs in caches of more than 2^31 elements only, more than a check has memory for"
        ),
    },
    "2.14": {
        "mean_square = tl.sum(h * h, axis=0) / N -> mean_square = tl.sum(h * h, axis=-1) / N": "there is one axis",
        "weight = tl.load(weight_ptr + columns, mask=mask, other=0.0) -> weight = tl.load(weight_ptr + columns, mask=mask, other=1.0)": (
            "what is multiplied by it is not stored"
        ),
        "weight = tl.load(weight_ptr + columns, mask=mask, other=0.0) -> weight = tl.load(weight_ptr + columns, mask=mask, other=-1.0)": (
            "what is multiplied by it is not stored"
        ),
    },
    "2.15": {
        "longest = int(cu_query_lens.diff().max()) -> longest = cu_query_lens.diff().max()": (
            "`triton.cdiv` of a 0-d tensor is one as well, and a grid takes it"
        ),
        "grid = (triton.cdiv(longest, block_q), len(seq_lens), num_kv_heads) -> grid = (triton.cdiv(longest, block_q), len(block_tables), num_kv_heads)": (
            "each sequence has a row of the table"
        ),
    },
}
