"""Whole cells for answers of open exercises; ../decode/whole.py says how a part is replaced."""

from collections.abc import Mapping

from tests.labs.decode.whole import opened
from twophase_labs.machine.exercise import Bank

RECOVER = """
def recover(ask, parts):
    known, found = [], []
    for options in parts:
        times = ⟦1:[ask(known + option) for option in options]⟧
        pick = ⟦2:times.index(min(times))⟧
        found.append(pick)
        known = ⟦3:known + options[pick]⟧
    return found
"""
NGRAM_DRAFT = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    for n in ⟦1:range(longest, shortest - 1, -1)⟧:
        newest = token_ids[-n:]
        for start in ⟦2:range(len(token_ids) - n - 1, -1, -1)⟧:
            if token_ids[start : start + n] == newest:
                return ⟦3:token_ids[start + n : start + n + num_draft]⟧
    return []
"""
VERIFY = """
def verify(draft, p, q, chance):
    tokens = []
    for i, token in enumerate(draft):
        keep = ⟦1:min(1, p[i, token] / q[i, token])⟧
        if chance.uniform() >= keep:
            left = ⟦2:np.clip(p[i] - q[i], 0, None)⟧
            return [*tokens, chance.draw(left)]
        tokens.append(token)
    return [*tokens, chance.draw(⟦3:p[len(draft)]⟧)]
"""
DRAFT_WITH_MODEL = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    drafts, q = [], []
    for _ in range(num_draft):
        row = next_probs(⟦1:token_ids + drafts⟧)
        drafts.append(⟦2:chance.draw(row)⟧)
        q.append(⟦3:row⟧)
    return drafts, ⟦4:np.stack(q)⟧
"""
ALLOWED_IDS = """
def allowed_ids(machine, state, node):
    found, to_visit = [], [(node, state)]
    while to_visit:
        here, at = to_visit.pop()
        found += ⟦1:here.token_ids⟧
        for char, child in here.children.items():
            if ⟦2:char in machine.edges[at]⟧:
                to_visit.append((child, ⟦3:machine.edges[at][char]⟧))
    return ⟦4:found⟧
"""
KEPT_BLOCKS = """
def kept_blocks(num_tokens, block_size, window, num_sinks):
    num_blocks = -(-num_tokens // block_size)
    num_sink_blocks = ⟦1:-(-num_sinks // block_size)⟧
    first_seen = ⟦2:max(0, num_tokens + 1 - window)⟧
    first_block = ⟦3:first_seen // block_size⟧
    kept = []
    for i in range(num_blocks):
        if ⟦4:i < num_sink_blocks or i >= first_block⟧:
            kept.append(i)
    return kept
"""
HEAVY_HITTERS = """
def heavy_hitters(weights, budget, num_recent):
    scores, held = [0.0] * len(weights), []
    for query, row in enumerate(weights.tolist()):
        held.append(query)
        for key in held:
            scores[key] += ⟦1:row[key]⟧
        if ⟦2:len(held) > budget⟧:
            may_go = ⟦3:held[: len(held) - num_recent]⟧
            held.remove(⟦4:min(may_go, key=lambda key: scores[key])⟧)
    return ⟦5:held⟧
"""

TEMPLATES = {
    "recover": RECOVER,
    "ngram_draft": NGRAM_DRAFT,
    "verify": VERIFY,
    "draft_with_model": DRAFT_WITH_MODEL,
    "allowed_ids": ALLOWED_IDS,
    "kept_blocks": KEPT_BLOCKS,
    "heavy_hitters": HEAVY_HITTERS,
}
OPEN = {
    "5.3": "recover",
    "5.4": "ngram_draft",
    "5.5": "verify",
    "5.6": "draft_with_model",
    "5.9": "allowed_ids",
    "5.11": "kept_blocks",
    "5.12": "heavy_hitters",
}


def opened_all(banks: Mapping[str, Bank]) -> dict[str, Bank]:
    return {i: opened(bank, TEMPLATES[OPEN[i]]) if i in OPEN else bank for i, bank in banks.items()}
