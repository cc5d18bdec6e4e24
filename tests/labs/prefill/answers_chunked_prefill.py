"""Answers that prove the checks of exercise 2.11."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_11 = """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))  # [S, H, D]
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
"""

BANKS = {
    "2.11": Bank(
        wrong=(
            Wrong(
                "only the chunk's length",
                edited(SOLVED_2_11, ("seq_len = num_cached + len(q)", "seq_len = len(q)")),
                "writes K and V into their slots",
            ),
            Wrong(
                "positions start anew",
                edited(
                    SOLVED_2_11, ("positions = torch.arange(num_cached, seq_len)", "positions = torch.arange(len(q))")
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "positions one late",
                edited(
                    SOLVED_2_11,
                    (
                        "positions = torch.arange(num_cached, seq_len)",
                        "positions = torch.arange(num_cached + 1, seq_len + 1)",
                    ),
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "writes over the history",
                edited(
                    SOLVED_2_11,
                    (
                        "new = slot_mapping(block_table, num_cached, seq_len, block_size)",
                        "new = slot_mapping(block_table, 0, len(q), block_size)",
                    ),
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "writes one slot late",
                edited(
                    SOLVED_2_11,
                    (
                        "new = slot_mapping(block_table, num_cached, seq_len, block_size)",
                        "new = slot_mapping(block_table, num_cached + 1, seq_len + 1, block_size)",
                    ),
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "writes without the table",
                edited(
                    SOLVED_2_11,
                    (
                        "new = slot_mapping(block_table, num_cached, seq_len, block_size)",
                        "new = torch.arange(num_cached, seq_len)",
                    ),
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "keys not rotated",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q = rotate(q, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    return q
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "writes nothing",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    positions = torch.arange(num_cached, num_cached + len(q))
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    visible = positions <= positions[:, None]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    return torch.einsum("hls,shd->lhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "reads the pool in order",
                edited(
                    SOLVED_2_11,
                    ("slots = slot_mapping(block_table, 0, seq_len, block_size)", "slots = torch.arange(seq_len)"),
                ),
                "starts a prompt",
            ),
            Wrong(
                "reads the chunk only",
                edited(
                    SOLVED_2_11,
                    (
                        "slots = slot_mapping(block_table, 0, seq_len, block_size)",
                        "slots = slot_mapping(block_table, num_cached, seq_len, block_size)",
                    ),
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = positions <= positions[:, None]",
                    ),
                ),
                "sees the history",
            ),
            Wrong(
                "no mask",
                edited(
                    SOLVED_2_11,
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = torch.ones(len(q), seq_len, dtype=torch.bool)",
                    ),
                ),
                "starts a prompt",
            ),
            Wrong(
                "not itself",
                edited(
                    SOLVED_2_11,
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = torch.arange(seq_len) < positions[:, None]",
                    ),
                ),
                "starts a prompt",
            ),
            Wrong(
                "the diagonal not shifted",
                edited(
                    SOLVED_2_11,
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = torch.arange(seq_len) <= torch.arange(len(q))[:, None]",
                    ),
                ),
                "sees the history",
            ),
            Wrong(
                "rotates the history again",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    keys[:num_cached] = rotate(keys[:num_cached], torch.arange(num_cached), theta)
    visible = torch.arange(seq_len) <= positions[:, None]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "sees the history",
            ),
            Wrong(
                "whole pages, stale slots too",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
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
""",
                "keeps unused slots out",
            ),
            Wrong(
                "sees the last 16 tokens only",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = (torch.arange(seq_len) <= positions[:, None]) & (torch.arange(seq_len) > positions[:, None] - 16)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "sees the history",
            ),
            Wrong(
                "ignores the scale",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size = k_cache.shape[2]
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * q.shape[-1] ** -0.5
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "starts a prompt",
            ),
            Wrong(
                "pages of four",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size = 4
    seq_len = num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    visible = torch.arange(seq_len) <= positions[:, None]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "sees 64 tokens",
                edited(
                    SOLVED_2_11,
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = ((d := positions[:, None] - torch.arange(seq_len)) >= 0) & (d < 64)",
                    ),
                ),
                "sees the history",
            ),
            Wrong(
                "always a base of 10,000",
                edited(
                    SOLVED_2_11,
                    (
                        "rotate(q, positions, theta), rotate(k, positions, theta)",
                        "rotate(q, positions, 1e4), rotate(k, positions, 1e4)",
                    ),
                ),
                "writes K and V into their slots",
            ),
            Wrong(
                "no empty chunks",
                edited(
                    SOLVED_2_11,
                    (
                        "    block_size = k_cache.shape[2]\n",
                        "    block_size = k_cache.shape[2]\n    assert len(q) > 0\n",
                    ),
                ),
                "sees the history",
            ),
            Wrong(
                "groups of three",
                edited(SOLVED_2_11, ("group = q.shape[1] // k.shape[1]", "group = 3")),
                "sees the history",
            ),
            Wrong(
                "-1e4 for what is hidden",
                edited(SOLVED_2_11, ("torch.where(visible, scores, -torch.inf)", "torch.where(visible, scores, -1e4)")),
                "works at any level of scores",
            ),
            Wrong(
                "rotates the caller's tensors",
                edited(
                    SOLVED_2_11,
                    (
                        "q, k = rotate(q, positions, theta), rotate(k, positions, theta)",
                        "q[:], k[:] = rotate(q, positions, theta), rotate(k, positions, theta)",
                    ),
                ),
                "leaves its inputs alone",
            ),
            Wrong(
                "clears the caches for a new prompt",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    if num_cached == 0:
        k_cache.zero_()
        v_cache.zero_()
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    visible = torch.arange(seq_len) <= positions[:, None]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "clears its new blocks",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    fresh = block_table[-(-num_cached // k_cache.shape[2]) :].long()
    k_cache[fresh], v_cache[fresh] = 0, 0
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    visible = torch.arange(seq_len) <= positions[:, None]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "clears NaN from the caches",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    k_cache.nan_to_num_()
    v_cache.nan_to_num_()
    block_size, seq_len = k_cache.shape[2], num_cached + len(q)
    positions = torch.arange(num_cached, seq_len)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    new = slot_mapping(block_table, num_cached, seq_len, block_size)
    k_cache[new // block_size, :, new % block_size] = k
    v_cache[new // block_size, :, new % block_size] = v
    slots = slot_mapping(block_table, 0, seq_len, block_size)
    keys, values = (cache[slots // block_size, :, slots % block_size] for cache in (k_cache, v_cache))
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("lhd,shd->hls", q, keys) * scale
    visible = torch.arange(seq_len) <= positions[:, None]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hls,shd->lhd", weights, values)
""",
                "writes K and V into their slots",
            ),
            Wrong(
                "remembers earlier chunks outside of the caches",
                """
_past = {}
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    positions = torch.arange(num_cached, num_cached + len(q))
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    if num_cached == 0:
        _past.clear()
    K, V = torch.cat([_past["k"], k]) if "k" in _past else k, torch.cat([_past["v"], v]) if "v" in _past else v
    _past.update(k=K, v=V)
    new = slot_mapping(block_table, num_cached, num_cached + len(q), k_cache.shape[2])
    k_cache[new // k_cache.shape[2], :, new % k_cache.shape[2]] = k
    v_cache[new // k_cache.shape[2], :, new % k_cache.shape[2]] = v
    g = q.shape[1] // k.shape[1]
    s = torch.einsum("lhd,shd->hls", q, K.repeat_interleave(g, 1)) * scale
    s = s.masked_fill(torch.arange(len(K)) > positions[:, None], -torch.inf)
    return torch.einsum("hls,shd->lhd", s.softmax(-1), V.repeat_interleave(g, 1))
""",
                "sees the history",
            ),
        ),
        right=(
            Right(
                "slot by slot, torch's own attention",
                """
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
""",
            ),
            Right(
                "a triangle that is shifted",
                edited(
                    SOLVED_2_11,
                    (
                        "visible = torch.arange(seq_len) <= positions[:, None]",
                        "visible = torch.ones(len(q), seq_len, dtype=torch.bool).tril(num_cached)",
                    ),
                ),
            ),
            Right(
                "positions by counting on",
                edited(
                    SOLVED_2_11,
                    ("positions = torch.arange(num_cached, seq_len)", "positions = num_cached + torch.arange(len(q))"),
                ),
            ),
            Right(
                "a row at a time, like decode steps",
                """
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
""",
            ),
            Right(
                "merges history and chunk by their LSE",
                """
def prefill_chunk(q, k, v, k_cache, v_cache, block_table, num_cached, theta, scale):
    size, G, n = k_cache.shape[2], q.shape[1] // k.shape[1], len(q)
    at = torch.arange(num_cached, num_cached + n)
    q, k = rotate(q, at, theta), rotate(k, at, theta)
    for i, s in enumerate(slot_mapping(block_table, num_cached, num_cached + n, size).tolist()):
        k_cache[s // size, :, s % size], v_cache[s // size, :, s % size] = k[i], v[i]
    out = torch.empty_like(q)
    old = slot_mapping(block_table, 0, num_cached, size)
    K, V = k_cache[old // size, :, old % size], v_cache[old // size, :, old % size]
    for h in range(q.shape[1]):
        g = h // G
        a = q[:, h] @ K[:, g].T * scale
        b = (q[:, h] @ k[:, g].T * scale).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        la, lb = a.logsumexp(1), b.logsumexp(1)
        l = torch.logaddexp(la, lb)
        out[:, h] = (a - l[:, None]).exp() @ V[:, g] + (b - l[:, None]).exp() @ v[:, g]
    return out
""",
            ),
        ),
    ),
}
