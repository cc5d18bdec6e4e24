"""Answers that prove the check of exercise 3.6."""

from twophase_labs.machine.bank import right, wrong

SHAPE, SLOTS, HEADS = "gives one row per query head", "reads the right slots", "shares the right KV heads"
NAN, WALK, SURVIVES_ANY = "keeps unwritten slots out", "matches a walk over the slots", "survives any score"
ALONE = "leaves its inputs alone"

REMAINDER = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    group = H // k_cache.shape[1]
    k, v = (c[block_tables.long()].transpose(2, 1).flatten(2, 3) for c in (k_cache, v_cache))
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    k, v = (x.masked_fill(hidden[:, None, :, None], 0).repeat(1, group, 1, 1) for x in (k, v))
    scores = torch.einsum("bhd,bhsd->bhs", q, k) * scale
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bhsd->bhd", weights, v)
"""
MASKED_WEIGHTS = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    group = H // k_cache.shape[1]
    k, v = (c[block_tables.long()].transpose(2, 1).flatten(2, 3) for c in (k_cache, v_cache))
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("bhd,bhsd->bhs", q, k) * scale
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bhsd->bhd", weights, v)
"""
SCALES_Q = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    page, group = k_cache.shape[2], q.shape[1] // k_cache.shape[1]
    q *= scale
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        pages = block_tables[b, : -(-length // page)]
        k, v = (c[pages].transpose(0, 1).flatten(1, 2)[:, :length] for c in (k_cache, v_cache))
        grouped = q[b].unflatten(0, (-1, group))
        out[b] = ((grouped @ k.mT).softmax(-1) @ v).flatten(0, 1)
    return out
"""
PADDED = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    B, H, D = q.shape
    group = H // k_cache.shape[1]
    k, v = (c[block_tables.long()].transpose(2, 1).flatten(2, 3) for c in (k_cache, v_cache))
    hidden = torch.arange(k.shape[2]) >= seq_lens[:, None]
    k, v = (x.masked_fill(hidden[:, None, :, None], 0).repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("bhd,bhsd->bhs", q, k) * scale
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bhsd->bhd", weights, v)
"""
BY_SLOT = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    page, out = k_cache.shape[2], []
    for row, table, length in zip(q, block_tables, seq_lens.tolist()):
        at = torch.arange(length)
        blocks, offsets = table[at // page].long(), at % page
        k, v = k_cache[blocks, :, offsets], v_cache[blocks, :, offsets]
        out.append(
            torch.nn.functional.scaled_dot_product_attention(
                row[:, None], k.transpose(0, 1), v.transpose(0, 1), scale=scale, enable_gqa=True
            )[:, 0]
        )
    return torch.stack(out)
"""

# fmt: off
BANKS = {
    "3.6": (
        wrong("returns nothing", {1: "out = torch.empty_like(q)"}, by=SHAPE),
        wrong("drops the last token", ":length", ":max(1, length - 1)", by=SLOTS),
        wrong("no scale", "grouped @ k.mT * scale", "grouped @ k.mT", by=SLOTS),
        wrong("remainder for the head", REMAINDER, by=HEADS),
        wrong("masks scores, not values", MASKED_WEIGHTS, by=NAN),
        wrong("reads 128 tokens", "seq_lens.tolist", "seq_lens.clamp(max=128).tolist", by=WALK),
        wrong("exp without the maximum", "(grouped @ k.mT * scale).softmax(-1",
              "(s := (grouped @ k.mT * scale).exp()) / s.sum(-1, keepdim=True", by=SURVIVES_ANY),
        wrong("scales its input", SCALES_Q, by=ALONE),
        right("padded to the longest, masked", PADDED),
        right("a slot at a time by index", BY_SLOT),
    ),
}
