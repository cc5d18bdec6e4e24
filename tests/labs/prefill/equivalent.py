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
        "seq_len = num_cached + len(q) -> seq_len = num_cached + len(k)": ("a chunk has as many keys as queries"),
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
