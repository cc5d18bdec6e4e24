"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT = {
    "3.8": {
        "pages = block_tables[b, :num_pages] -> pages = block_tables[b, :num_pages + 1]": (
            "what is gathered is cut to the length; the table is padded with pages that exist"
        ),
        "pages = block_tables[b, :num_pages] -> pages = block_tables[b, :length]": (
            "what is gathered is cut to the length; the table is padded with pages that exist"
        ),
    },
    "3.9": {
        "pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0) -> pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=1)": (
            "what is out of range is masked in the loads of keys and values, too"
        ),
        "pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=0) -> pages = tl.load(table_ptr + positions // PAGE, mask=in_range, other=-1)": (
            "what is out of range is masked in the loads of keys and values, too"
        ),
        "q = tl.load(q_ptr + offs_q, mask=mask_q, other=0.0) -> q = tl.load(q_ptr + offs_q, mask=mask_q, other=1.0)": (
            "the rows beyond are not stored, and the columns beyond meet zeros of the keys"
        ),
    },
    "3.11": {
        "sum_safe = tl.where(row_sum == 0, 1.0, row_sum) -> sum_safe = tl.where(row_sum == 0, 2.0, row_sum)": (
            "where the sum is 0 so is what is divided"
        ),
    },
    "3.12": {
        "m_safe = tl.where(m == float('-inf'), 0.0, m) -> m_safe = tl.where(m == float('-inf'), 1.0, m)": (
            "minus infinity less any number is minus infinity"
        ),
        "m_safe = tl.where(m == float('-inf'), 0.0, m) -> m_safe = tl.where(m == float('-inf'), -1.0, m)": (
            "minus infinity less any number is minus infinity"
        ),
        "partial = tl.load(partial_ptr + offs, mask=mask, other=0.0) -> partial = tl.load(partial_ptr + offs, mask=mask, other=-1.0)": (
            "splits that do not exist weigh nothing, and columns beyond are not stored"
        ),
    },
    "3.17": {
        "return data.float() * scale[..., None] -> return data * scale[..., None]": ("int8 times float32 is float32"),
    },
    "3.21": {
        "dy = y - y.mean() -> dy = y + y.mean()": (
            "the deviations of t sum to 0, so a constant added to y changes nothing"
        ),
        "dy = y - y.mean() -> dy = y - t.mean()": (
            "the deviations of t sum to 0, so a constant added to y changes nothing"
        ),
        "dy = y - y.mean() -> dy = y - dt.mean()": (
            "the deviations of t sum to 0, so a constant added to y changes nothing"
        ),
        "b = (dt * dy).sum() / (dt * dt).sum() -> b = (dt * y).sum() / (dt * dt).sum()": (
            "the deviations of t sum to 0, so a constant added to y changes nothing"
        ),
    },
}
