"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "3.1": {
        "num_cached = cache[0][0].shape[1] -> num_cached = cache[0][1].shape[1]": (
            "every layer's keys and values have the same number of tokens"
        ),
        "num_cached = cache[0][0].shape[1] -> num_cached = cache[-1][0].shape[1]": (
            "every layer's keys and values have the same number of tokens"
        ),
        "num_cached = cache[0][0].shape[1] -> num_cached = cache[0][-1].shape[1]": (
            "every layer's keys and values have the same number of tokens"
        ),
        "num_cached = cache[0][0].shape[1] -> num_cached = cache[1][0].shape[1]": (
            "every layer's keys and values have the same number of tokens"
        ),
    },
    "3.7": {
        "page, group = (k_cache.shape[2], q.shape[1] // k_cache.shape[1]) -> page, group = (min(k_cache.shape[2], 64), q.shape[1] // k_cache.shape[1])": (
            "a smaller page gathers more blocks than there are tokens for, and what was gathered is cut at the length"
        ),
        "block_ids = block_tables[b, :-(-length // page)] -> block_ids = block_tables[b, :-(-length // page) + 1]": (
            "one block more is gathered, and cut off at the length"
        ),
        "page, group = (k_cache.shape[2], q.shape[1] // k_cache.shape[1]) -> page, group = (k_cache.shape[2], q.shape[1] // min(k_cache.shape[1], 64))": (
            "differs from 65 KV heads on only, which the oracle, token by token and head by head, is too slow for"
        ),
    },
    "3.8": {
        "rows = (pages.to(tl.int64) * H_KV + kv_head) * PAGE + positions % PAGE -> rows = (pages.to(tl.int32) * H_KV + kv_head) * PAGE + positions % PAGE": (
            "32 bits count 2^31 elements, 4 GB of float16 in one layer's keys: no pool of a check is that large"
        ),
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
        "partial = torch.where(weights[..., None] > 0, partial, 0.0) -> partial = torch.where(weights[..., None] > 0, partial, 1.0)": (
            "its weight is 0, and any number times 0 is 0"
        ),
        "partial = torch.where(weights[..., None] > 0, partial, 0.0) -> partial = torch.where(weights[..., None] > 0, partial, -1.0)": (
            "its weight is 0, and any number times 0 is 0"
        ),
    },
    "3.14": {
        "return (torch.cat([dequantise(data, scale), recent.float()]), num_bytes) -> return (torch.cat([dequantise(data, scale), recent]), num_bytes)": (
            "torch.cat of float32 and float16 is float32"
        ),
    },
    "3.13": {
        "return data.float() * scale[..., None] -> return data * scale[..., None]": ("int8 times float32 is float32"),
    },
    "3.16": {
        "def own_engine(model, block_size, num_blocks, num_splits=2, **options): -> def own_engine(model, block_size, num_blocks, num_splits=3, **options):": (
            "a line that is given; the number of splits changes no token"
        ),
        "def own_engine(model, block_size, num_blocks, num_splits=2, **options): -> def own_engine(model, block_size, num_blocks, num_splits=1, **options):": (
            "a line that is given; the number of splits changes no token"
        ),
        "return OwnCache(blocks, new_table, block_size, fork, prepare_write) -> return OwnCache(blocks, new_table, num_blocks, fork, prepare_write)": (
            "a line that is given; slots are counted by the tables' block size, this one only by what admission leaves free"
        ),
    },
}
