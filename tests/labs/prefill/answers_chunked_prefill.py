"""Answers that prove the check of exercise 2.18."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SDPA = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    page, L = k_cache.shape[2], len(q)
    positions = num_cached + torch.arange(L)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
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
WHOLE_PAGES = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    end = -(-seq_len // block_size) * block_size
    slots = slot_mapping(block_table, 0, end, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(end) <= positions[:, None]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
"""
WRITES_NOTHING = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    positions = torch.arange(num_cached, num_cached + len(q))
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    visible = positions <= positions[:, None]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    return torch.einsum("hls,shd->lhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), values)
"""
KEYS_NOT_ROTATED = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q = rotate(q, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    return q
"""
ROTATES_TWICE = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, THETA), rotate(k, positions, THETA)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    keys[:num_cached] = rotate(keys[:num_cached], torch.arange(num_cached), THETA)
    visible = torch.arange(seq_len) <= positions[:, None]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
"""
WRITES = "writes K and V into their slots"
HISTORY = "sees the history"

BANKS = {
    "2.18": Bank(
        wrong=(
            Wrong("only the chunk's length", {1: "len(q)"}, WRITES),
            Wrong("positions start anew", {2: "torch.arange(len(q))"}, WRITES),
            Wrong("positions one late", {2: "torch.arange(num_cached + 1, seq_len + 1)"}, WRITES),
            Wrong("writes over the history", {3: "slot_mapping(block_table, 0, len(q), block_size)"}, WRITES),
            Wrong(
                "writes one slot late",
                {3: "slot_mapping(block_table, num_cached + 1, seq_len + 1, block_size)"},
                WRITES,
            ),
            Wrong("writes without the table", {3: "torch.arange(num_cached, seq_len)"}, WRITES),
            Wrong("keys not rotated", KEYS_NOT_ROTATED, WRITES),
            Wrong("writes nothing", WRITES_NOTHING, WRITES),
            Wrong("reads the pool in order", {4: "torch.arange(seq_len)"}, "starts a prompt"),
            Wrong(
                "reads the chunk only",
                {
                    4: "slot_mapping(block_table, num_cached, seq_len, block_size)",
                    5: "positions <= positions[:, None]",
                },
                HISTORY,
            ),
            Wrong("no mask", {5: "torch.ones(len(q), seq_len, dtype=torch.bool)"}, "starts a prompt"),
            Wrong("not itself", {5: "torch.arange(seq_len) < positions[:, None]"}, "starts a prompt"),
            Wrong("the diagonal not shifted", {5: "torch.arange(seq_len) <= torch.arange(len(q))[:, None]"}, HISTORY),
            Wrong("rotates the history again", ROTATES_TWICE, HISTORY),
            Wrong("whole pages, stale slots too", WHOLE_PAGES, "keeps unused slots out"),
        ),
        right=(
            Right("slot by slot, torch's own attention", SDPA),
            Right("a triangle that is shifted", {5: "torch.ones(len(q), seq_len, dtype=torch.bool).tril(num_cached)"}),
            Right("positions by counting on", {2: "num_cached + torch.arange(len(q))"}),
        ),
    ),
}
