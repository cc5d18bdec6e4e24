"""Answers that prove the check of exercise 3.7."""

from tests.labs.decode.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

SHAPE, SLOTS, HEADS, NAN, WALK, ALONE = (
    "gives one row per query head",
    "reads the right slots",
    "shares the right KV heads",
    "keeps unwritten slots out",
    "matches a walk over the slots",
    "leaves its inputs alone",
)
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
MASKED_WEIGHTS = PADDED.replace(
    "    k, v = (x.masked_fill(hidden[:, None, :, None], 0).repeat_interleave(group, dim=1) for x in (k, v))\n",
    "    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))\n",
)
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
REMAINDER = PADDED.replace(".repeat_interleave(group, dim=1)", ".repeat(1, group, 1, 1)")
ROW = "cache[pages].transpose(0, 1).flatten(1, 2)"
PERMUTED = "cache[pages].permute(1, 0, 2, 3).reshape(cache.shape[1], -1, cache.shape[3])[:, :length]"
RETURNS_NOTHING = """
def paged_attention(q, k_cache, v_cache, block_tables, seq_lens, scale):
    out = torch.empty_like(q)
"""

BANKS = {
    "3.7": Bank(
        wrong=(
            Wrong("returns nothing", RETURNS_NOTHING, SHAPE),
            Wrong("drops the last, partial page", {2: "max(1, length // page)"}, SLOTS),
            Wrong(
                "one page too many", {2: "length // page + 1", 1: "cache[pages].transpose(0, 1).flatten(1, 2)"}, SLOTS
            ),
            Wrong("the first pages of the pool", {3: "torch.arange(num_pages)"}, SLOTS),
            Wrong("another sequence's pages", {3: "block_tables[0, :num_pages]"}, SLOTS),
            Wrong("pages in the pool's order", {3: "block_tables[b, :num_pages].sort().values"}, SLOTS),
            Wrong(
                "page and head mixed up",
                {1: "cache[pages].reshape(cache.shape[1], -1, cache.shape[3])[:, :length]"},
                SLOTS,
            ),
            Wrong("the tail of the last page", {1: ROW}, SLOTS),
            Wrong(
                "drops the last token",
                {1: "cache[pages].transpose(0, 1).flatten(1, 2)[:, : max(1, length - 1)]"},
                SLOTS,
            ),
            Wrong(
                "one past the end",
                {1: "cache[pages].transpose(0, 1).flatten(1, 2)[:, : length + 1]"},
                SLOTS,
            ),
            Wrong("remainder for the head", REMAINDER, HEADS),
            Wrong("heads regrouped, results not", {4: "q[b].unflatten(0, (group, -1)).transpose(0, 1)"}, SLOTS),
            Wrong("masks scores, not values", MASKED_WEIGHTS, NAN),
            Wrong("no scale", {5: "(grouped @ k.mT).softmax(-1)"}, SLOTS),
            Wrong("its own idea of the scale", {5: "(grouped @ k.mT / q.shape[-1] ** 0.5).softmax(-1)"}, WALK),
            Wrong("softmax over the heads", {5: "(grouped @ k.mT * scale).softmax(1)"}, SLOTS),
            Wrong("scales its input", SCALES_Q, ALONE),
        ),
        right=(
            Right("a slot at a time by index", BY_SLOT),
            Right("padded to the longest, masked", PADDED),
            Right("pages rounded up by adding", {2: "(length + page - 1) // page"}),
            Right(
                "permuted and reshaped",
                {1: PERMUTED},
            ),
        ),
    ),
}
BANKS = opened_all(BANKS)
