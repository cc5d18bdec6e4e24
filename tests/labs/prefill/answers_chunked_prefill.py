"""Answers that prove the check of exercise 2.11."""

from twophase_labs.machine.bank import right, wrong

WRITES_K, STARTS_A, HISTORY = "writes K and V into their slots", "starts a prompt", "sees the history"
UNUSED, WORKS_AT, LEAVES_ITS = "keeps unused slots out", "works at any level of scores", "leaves its inputs alone"

A_ROW_AT_A = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    size, G = k_cache.shape[2], q.shape[1] // k.shape[1]
    result = []
    for t in range(len(q)):
        p = num_cached + t
        at = torch.tensor([p])
        block, offset = int(block_table[p // size]), p % size
        k_cache[block, :, offset] = rotate(k[t : t + 1], at, theta)[0]
        v_cache[block, :, offset] = v[t]
        query = rotate(q[t : t + 1], at, theta)[0]
        slots = slot_mapping(block_table, 0, p + 1, size).tolist()
        K = torch.stack([k_cache[s // size, :, s % size] for s in slots])
        V = torch.stack([v_cache[s // size, :, s % size] for s in slots])
        heads = []
        for h in range(q.shape[1]):
            w = (K[:, h // G] @ query[h] * scale).softmax(0)
            heads.append(w @ V[:, h // G])
        result.append(torch.stack(heads))
    return torch.stack(result) if result else torch.zeros_like(q)
"""
SLOT_BY_SLOT_TORCH = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    page, L = k_cache.shape[2], len(q)
    positions = num_cached + torch.arange(L)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    for position, one_k, one_v in zip(positions.tolist(), k, v):
        slot = int(block_table[position // page]), slice(None), position % page
        k_cache[slot], v_cache[slot] = one_k, one_v
    S = num_cached + L
    pages = block_table[: -(-S // page)].long()
    keys, values = (cache[pages].transpose(0, 1).flatten(1, 2)[:, :S] for cache in (k_cache, v_cache))
    visible = torch.ones(L, S, dtype=torch.bool).tril(num_cached)
    return torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=visible, scale=scale, enable_gqa=True
    ).transpose(0, 1)
"""

# fmt: off
BANKS = {
    "2.11": (
        wrong("pages of four", "k_cache.shape[2]", "4", by=WRITES_K),
        wrong("only the chunk's length", "num_cached + len(q)", "len(q)", by=WRITES_K),
        wrong("reads the pool in order", "slot_mapping(block_table, 0, seq_len, block_size", "torch.arange(seq_len",
              by=STARTS_A),
        wrong("no mask", ".arange(seq_len) <= positions[:, None]", ".ones(len(q), seq_len, dtype=torch.bool)",
              by=STARTS_A),
        wrong("the diagonal not shifted", "positions[:, None]", "torch.arange(len(q))[:, None]", by=HISTORY),
        wrong("whole pages, stale slots too", "slots = slot_mapping(block_table, 0,",
              "seq_len = -(-seq_len // block_size) * block_size\n    slots = slot_mapping(block_table, 0,", by=UNUSED),
        wrong("-1e4 for what is hidden", "torch.inf", "10000.0", by=WORKS_AT),
        wrong("rotates the caller's tensors", "q, k = rotate(q, positions, theta), rotate(k, positions, theta)",
              "(q[:], k[:]) = rotate(q, positions, theta), rotate(k, positions, theta)", by=LEAVES_ITS),
        right("a row at a time, like decode steps", A_ROW_AT_A),
        right("slot by slot, torch's own attention", SLOT_BY_SLOT_TORCH),
    ),
}
