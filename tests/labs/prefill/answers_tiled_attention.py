"""Answers that prove the checks of exercises 2.10 and 2.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

WHOLE = """
def tiled_attention(memory, L, D, block_q, block_k):
    q, k, v = memory.load("q"), memory.load("k"), memory.load("v")
    scores = (q @ k.mT / D**0.5).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    memory.store("out", 0, scores.softmax(-1) @ v)
"""
HEAD = """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        m, l, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            scores = scores.masked_fill(torch.arange(at, at + len(k)) > rows[:, None], -torch.inf)
"""
NO_MAXIMUM = (
    HEAD
    + """
            p = torch.exp2(scores)
            l, acc = l + p.sum(-1), acc + p @ v
        memory.store("out", start, acc / l[:, None])
"""
)
STORES_EARLY = (
    HEAD
    + """
            new_m = torch.maximum(m, scores.amax(-1))
            p, scale = torch.exp2(scores - new_m[:, None]), torch.exp2(m - new_m)
            m, l, acc = new_m, l * scale + p.sum(-1), acc * scale[:, None] + p @ v
            memory.store("out", start, acc / l[:, None])
"""
)
NO_RESCALE = (
    HEAD
    + """
            new_m = torch.maximum(m, scores.amax(-1))
            p = torch.exp2(scores - new_m[:, None])
            m, l, acc = new_m, l + p.sum(-1), acc + p @ v
        memory.store("out", start, acc / l[:, None])
"""
)
ALWAYS_NORMALISED = (
    HEAD
    + """
            tile_m = scores.amax(-1)
            safe = tile_m.masked_fill(tile_m == -torch.inf, 0)
            p = torch.exp2(scores - safe[:, None])
            tile_lse = safe + p.sum(-1).log2()
            new = torch.logaddexp2(m, tile_lse)
            acc = acc * torch.exp2(m - new)[:, None] + torch.exp2(tile_m - new)[:, None] * (p @ v)
            m = new
        memory.store("out", start, acc)
"""
)
BASE_E_THROUGHOUT = """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q) / D**0.5
        rows = torch.arange(start, start + len(q))[:, None]
        m, l, acc = torch.full((len(q), 1), -torch.inf), torch.zeros(len(q), 1), torch.zeros(len(q), D)
        for at in range(0, min(start + block_q, L), block_k):
            k, v = (memory.load(name, at, at + block_k) for name in "kv")
            scores = torch.where(torch.arange(at, at + len(k)) <= rows, q @ k.mT, -torch.inf)
            new_m = torch.maximum(m, scores.amax(-1, keepdim=True))
            p = (scores - new_m).exp()
            l = l * (m - new_m).exp() + p.sum(-1, keepdim=True)
            acc = acc * (m - new_m).exp() + p @ v
            m = new_m
        memory.store("out", start, acc / l)
"""
STORE, ONES, FUTURE, PAST, EXACT, HUGE, TILES, HIDDEN = (
    "stores every row once",
    "averages the values",
    "hides the future",
    "sees the past and itself",
    "gives exact attention",
    "survives huge scores",
    "moves tiles, never the whole",
    "leaves out what is hidden",
)
BY_LISTS = """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = [L * D, L * D, L * L, L * L, L * L, L * L, L * D, L * D]
    tiled = [L * D, L * D]
    for start in range(0, L, block_q):
        for at in range(0, min(start + block_q, L), block_k):
            tiled += [D * (min(at + block_k, L) - at)] * 2
    return sum(standard) * bytes_per_number, sum(tiled) * bytes_per_number
"""
ONE_NUMBER = """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    return (4 * L * D + 4 * L * L) * bytes_per_number
"""

BANKS = {
    "2.10": Bank(
        wrong=(
            Wrong("stores after every key tile", STORES_EARLY, STORE),
            Wrong("forgets to divide", {7: "acc"}, ONES),
            Wrong("sums without rescaling", {5: "row_sum + p.sum(-1)"}, ONES),
            Wrong("contents without rescaling", {6: "acc + p @ v"}, ONES),
            Wrong("keeps the last tile only", {5: "p.sum(-1)", 6: "p @ v"}, ONES),
            Wrong("no mask", {3: "torch.zeros(len(q), len(k), dtype=torch.bool)"}, FUTURE),
            Wrong(
                "a mask that counts inside the tile",
                {3: "torch.arange(len(k)) > torch.arange(len(q))[:, None]"},
                FUTURE,
            ),
            Wrong(
                "the mask one key late",
                {3: "torch.arange(at, at + len(k)) > rows[:, None] + 1"},
                FUTURE,
            ),
            Wrong("a token does not see itself", {3: "torch.arange(at, at + len(k)) >= rows[:, None]"}, ONES),
            Wrong("stops at the query tile's first token", {1: "range(0, start + 1, block_k)"}, PAST),
            Wrong("leaves the last key tile out", {1: "range(0, start + len(q) - 1, block_k) or [0]"}, PAST),
            Wrong(
                "only the tile on the diagonal", {1: "range(start // block_k * block_k, start + len(q), block_k)"}, PAST
            ),
            Wrong("no scale", {2: "q @ k.mT * LOG2_E"}, EXACT),
            Wrong("exp2 of a natural score", {2: "q @ k.mT / D**0.5"}, EXACT),
            Wrong("no rescaling at all", NO_RESCALE, EXACT),
            Wrong("the tile's own maximum", {4: "scores.amax(-1)"}, ONES),
            Wrong("no maximum", NO_MAXIMUM, HUGE),
            Wrong("everything at once", WHOLE, TILES),
            Wrong("all key tiles", {1: "range(0, L, block_k)"}, HIDDEN),
        ),
        right=(
            Right("means and log-sums, tile by tile", ALWAYS_NORMALISED),
            Right("base e throughout", BASE_E_THROUGHOUT),
            Right("the maximum of both at once", {4: "torch.cat([row_max[:, None], scores], dim=-1).amax(-1)"}),
        ),
    ),
    "2.11": Bank(
        wrong=(
            Wrong("one number", ONE_NUMBER, "counts the standard way"),
            Wrong("the scores once", {1: "4 * L * D + L * L"}, "counts the standard way"),
            Wrong(
                "scores written and read, weights forgotten", {1: "4 * L * D + 2 * L * L"}, "counts the standard way"
            ),
            Wrong("half the scores, for causality", {1: "4 * L * D + 2 * L * (L + 1)"}, "counts the standard way"),
            Wrong("the result is not written", {1: "3 * L * D + 4 * L * L"}, "counts the standard way"),
            Wrong("inputs and outputs only", {3: "0"}, "counts the tiled way"),
            Wrong("results are not written", {2: "L * D"}, "counts the tiled way"),
            Wrong("all keys for every query tile", {3: "L"}, "counts the tiled way"),
            Wrong("keys to the last token exactly", {3: "end"}, "counts the tiled way"),
            Wrong("beyond the end", {3: "-(-end // block_k) * block_k"}, "counts the tiled way"),
            Wrong("keys without values", {4: "num_keys * D"}, "counts the tiled way"),
            Wrong("numbers for bytes", {5: "4 * standard, 4 * tiled"}, "counts bytes"),
        ),
        right=(
            Right("lists of what crosses", BY_LISTS),
            Right("tiles by counting", {3: "min(len(range(0, end, block_k)) * block_k, L)"}),
            Right("the standard way, line by line", {1: "(2 * L * D + L * L) + 2 * L * L + (L * L + 2 * L * D)"}),
        ),
    ),
}
