"""Answers that prove the checks of exercises 2.6 and 2.7."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_6 = """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))  # the positions of these queries
        row_max, row_sum, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            hidden = torch.arange(at, at + len(k)) > rows[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
            new_max = torch.maximum(row_max, scores.amax(-1))
            p, rescale = torch.exp2(scores - new_max[:, None]), torch.exp2(row_max - new_max)
            row_sum = row_sum * rescale + p.sum(-1)
            acc = acc * rescale[:, None] + p @ v
            row_max = new_max
        memory.store(
            "out", start, acc / row_sum[:, None]
        )
"""

SOLVED_2_7 = """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = 4 * L * D + 4 * L * L
    tiled = 2 * L * D
    for start in range(0, L, block_q):
        end = min(start + block_q, L)  # this tile holds queries start to end - 1
        num_keys = min(-(-end // block_k) * block_k, L)
        tiled += 2 * num_keys * D
    return standard * bytes_per_number, tiled * bytes_per_number
"""

BANKS = {
    "2.6": Bank(
        wrong=(
            Wrong(
                "reads by peek, loads for show",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    q, k, v = (memory.peek(name) for name in "qkv")
    hidden = torch.ones(L, L, dtype=torch.bool).triu(1)
    out = (q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
    for start in range(0, L, block_q):
        memory.load("q", start, start + block_q)
        for at in range(0, min(start + block_q, L), block_k):
            memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
        memory.store("out", start, out[start:start + block_q])
""",
                "stores every row once",
            ),
            Wrong(
                "keeps all scores in fast memory",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows, scores, values = torch.arange(start, start + len(q)), [], []
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            hidden = torch.arange(at, at + len(k)) > rows[:, None]
            scores.append((q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf))
            values.append(v)
        memory.store("out", start, torch.cat(scores, 1).softmax(-1) @ torch.cat(values))
""",
                "needs little fast memory",
            ),
            Wrong("always eight numbers", {2: "q @ k.mT * (LOG2_E / 8**0.5)"}, "gives exact attention"),
            Wrong(
                "stores after every key tile",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        m, l, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            scores = scores.masked_fill(torch.arange(at, at + len(k)) > rows[:, None], -torch.inf)

            new_m = torch.maximum(m, scores.amax(-1))
            p, scale = torch.exp2(scores - new_m[:, None]), torch.exp2(m - new_m)
            m, l, acc = new_m, l * scale + p.sum(-1), acc * scale[:, None] + p @ v
            memory.store("out", start, acc / l[:, None])
""",
                "stores every row once",
            ),
            Wrong("a key tile past the end", {1: "range(0, start + block_q, block_k)"}, "stores every row once"),
            Wrong("forgets to divide", {4: "acc"}, "averages the values"),
            Wrong(
                "sums without rescaling",
                edited(SOLVED_2_6, ("row_sum = row_sum * rescale + p.sum(-1)", "row_sum = row_sum + p.sum(-1)")),
                "averages the values",
            ),
            Wrong(
                "contents without rescaling",
                edited(SOLVED_2_6, ("acc = acc * rescale[:, None] + p @ v", "acc = acc + p @ v")),
                "averages the values",
            ),
            Wrong(
                "keeps the last tile only",
                edited(
                    SOLVED_2_6,
                    (
                        "            row_sum = row_sum * rescale + p.sum(-1)\n            acc = acc * rescale[:, None] + p @ v",
                        "            row_sum = p.sum(-1)\n            acc = p @ v",
                    ),
                ),
                "averages the values",
            ),
            Wrong("no mask", {3: "torch.zeros(len(q), len(k), dtype=torch.bool)"}, "hides the future"),
            Wrong(
                "a mask that counts inside the tile",
                {3: "torch.arange(len(k)) > torch.arange(len(q))[:, None]"},
                "hides the future",
            ),
            Wrong(
                "the mask one key late", {3: "torch.arange(at, at + len(k)) > rows[:, None] + 1"}, "hides the future"
            ),
            Wrong(
                "a token does not see itself",
                {3: "torch.arange(at, at + len(k)) >= rows[:, None]"},
                "averages the values",
            ),
            Wrong(
                "stops at the query tile's first token", {1: "range(0, start + 1, block_k)"}, "sees the past and itself"
            ),
            Wrong(
                "leaves the last key tile out",
                {1: "range(0, start + len(q) - 1, block_k) or [0]"},
                "sees the past and itself",
            ),
            Wrong(
                "only the tile on the diagonal",
                {1: "range(start // block_k * block_k, start + len(q), block_k)"},
                "sees the past and itself",
            ),
            Wrong("no scale", {2: "q @ k.mT * LOG2_E"}, "gives exact attention"),
            Wrong("exp2 of a natural score", {2: "q @ k.mT / D**0.5"}, "gives exact attention"),
            Wrong(
                "no rescaling at all",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        m, l, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            scores = scores.masked_fill(torch.arange(at, at + len(k)) > rows[:, None], -torch.inf)

            new_m = torch.maximum(m, scores.amax(-1))
            p = torch.exp2(scores - new_m[:, None])
            m, l, acc = new_m, l + p.sum(-1), acc + p @ v
        memory.store("out", start, acc / l[:, None])
""",
                "gives exact attention",
            ),
            Wrong(
                "the tile's own maximum",
                edited(SOLVED_2_6, ("new_max = torch.maximum(row_max, scores.amax(-1))", "new_max = scores.amax(-1)")),
                "averages the values",
            ),
            Wrong(
                "no maximum",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        m, l, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            scores = scores.masked_fill(torch.arange(at, at + len(k)) > rows[:, None], -torch.inf)

            p = torch.exp2(scores)
            l, acc = l + p.sum(-1), acc + p @ v
        memory.store("out", start, acc / l[:, None])
""",
                "survives huge scores",
            ),
            Wrong(
                "everything at once",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    q, k, v = memory.load("q"), memory.load("k"), memory.load("v")
    scores = (q @ k.mT / D**0.5).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    memory.store("out", 0, scores.softmax(-1) @ v)
""",
                "moves tiles, never the whole",
            ),
            Wrong("all key tiles", {1: "range(0, L, block_k)"}, "leaves out what is hidden"),
            Wrong(
                "a tile more where the queries end with a tile",
                {1: "range(0, min(L, start + len(q) + 1), block_k)"},
                "leaves out what is hidden",
            ),
            Wrong(
                "collects the tiles of a row of queries",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        end = start + len(q)
        ks, vs = [], []
        for at in range(0, end, block_k):
            ks.append(memory.load("k", at, at + block_k))
            vs.append(memory.load("v", at, at + block_k))
        k, v = torch.cat(ks)[:end], torch.cat(vs)[:end]
        s = q @ k.mT / D**0.5
        s = s.masked_fill(torch.arange(end) > torch.arange(start, end)[:, None], -torch.inf)
        memory.store("out", start, s.softmax(-1) @ v)
""",
                "needs little fast memory",
            ),
        ),
        right=(
            Right(
                "the last key tile up to the diagonal",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        row_max, row_sum, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            end = min(at + block_k, start + len(q))
            k, v = memory.load("k", at, end), memory.load("v", at, end)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            hidden = torch.arange(at, at + len(k)) > rows[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
            new_max = torch.maximum(row_max, scores.amax(-1))
            p, rescale = torch.exp2(scores - new_max[:, None]), torch.exp2(row_max - new_max)
            row_sum = row_sum * rescale + p.sum(-1)
            acc = acc * rescale[:, None] + p @ v
            row_max = new_max
        memory.store(
            "out", start, acc / row_sum[:, None]
        )
""",
            ),
            Right(
                "means and log-sums, tile by tile",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        rows = torch.arange(start, start + len(q))
        m, l, acc = torch.full((len(q),), -torch.inf), torch.zeros(len(q)), torch.zeros(len(q), D)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            scores = q @ k.mT * (LOG2_E / D**0.5)
            scores = scores.masked_fill(torch.arange(at, at + len(k)) > rows[:, None], -torch.inf)

            tile_m = scores.amax(-1)
            safe = tile_m.masked_fill(tile_m == -torch.inf, 0)
            p = torch.exp2(scores - safe[:, None])
            tile_lse = safe + p.sum(-1).log2()
            new = torch.logaddexp2(m, tile_lse)
            acc = acc * torch.exp2(m - new)[:, None] + torch.exp2(tile_m - new)[:, None] * (p @ v)
            m = new
        memory.store("out", start, acc)
""",
            ),
            Right(
                "base e throughout",
                """
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
""",
            ),
            Right(
                "the maximum of both at once",
                edited(
                    SOLVED_2_6,
                    (
                        "new_max = torch.maximum(row_max, scores.amax(-1))",
                        "new_max = torch.cat([row_max[:, None], scores], dim=-1).amax(-1)",
                    ),
                ),
            ),
            Right(
                "merges means by their LSE",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in range(0, L, block_q):
        q = memory.load("q", start, start + block_q)
        out, lse = torch.zeros(len(q), D), torch.full((len(q),), -torch.inf)
        for at in range(0, start + len(q), block_k):
            k, v = memory.load("k", at, at + block_k), memory.load("v", at, at + block_k)
            s = q @ k.T / D**0.5
            s[torch.arange(at, at + len(k))[None] > torch.arange(start, start + len(q))[:, None]] = -torch.inf
            part = torch.logsumexp(s, -1)
            both = torch.logaddexp(lse, part)
            out = out * (lse - both).exp()[:, None] + (s - both[:, None]).exp() @ v
            lse = both
        memory.store("out", start, out)
""",
            ),
            Right(
                "from right to left",
                """
def tiled_attention(memory, L, D, block_q, block_k):
    for start in reversed(range(0, L, block_q)):
        q = memory.load("q", start, min(L, start + block_q)).double()
        n = len(q)
        m, l, a = torch.full((n, 1), -torch.inf).double(), torch.zeros(n, 1).double(), torch.zeros(n, D).double()
        for at in reversed(range(0, start + n, block_k)):
            k = memory.load("k", at, min(L, at + block_k)).double()
            v = memory.load("v", at, min(L, at + block_k)).double()
            s = q @ k.T / D**0.5
            s = torch.where(torch.arange(at, at + len(k)) <= torch.arange(start, start + n)[:, None], s, -torch.inf)
            new = torch.maximum(m, s.max(-1, keepdim=True).values)
            safe = torch.where(new == -torch.inf, 0, new)
            p, r = (s - safe).exp(), (m - safe).exp()
            m, l, a = new, l * r + p.sum(-1, keepdim=True), a * r + p @ v
        memory.store("out", start, (a / l).float())
""",
            ),
        ),
    ),
    "2.7": Bank(
        wrong=(
            Wrong(
                "at most 128 queries",
                """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = 4 * L * D + 4 * L * L
    tiled = 2 * L * D
    for start in range(0, min(L, 200), block_q):
        end = min(start + block_q, L)
        num_keys = min(-(-end // block_k) * block_k, L)
        tiled += 2 * num_keys * D
    return standard * bytes_per_number, tiled * bytes_per_number
""",
                "counts the tiled way",
            ),
            Wrong(
                "one number",
                """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    return (4 * L * D + 4 * L * L) * bytes_per_number
""",
                "counts the standard way",
            ),
            Wrong("the scores once", {1: "4 * L * D + L * L"}, "counts the standard way"),
            Wrong(
                "scores written and read, weights forgotten", {1: "4 * L * D + 2 * L * L"}, "counts the standard way"
            ),
            Wrong("half the scores, for causality", {1: "4 * L * D + 2 * L * (L + 1)"}, "counts the standard way"),
            Wrong("the result is not written", {1: "3 * L * D + 4 * L * L"}, "counts the standard way"),
            Wrong("inputs and outputs only", {2: "0"}, "counts the tiled way"),
            Wrong(
                "results are not written",
                edited(SOLVED_2_7, ("tiled = 2 * L * D", "tiled = L * D")),
                "counts the tiled way",
            ),
            Wrong("all keys for every query tile", {2: "L"}, "counts the tiled way"),
            Wrong("keys to the last token exactly", {2: "end"}, "counts the tiled way"),
            Wrong("beyond the end", {2: "-(-end // block_k) * block_k"}, "counts the tiled way"),
            Wrong(
                "keys without values",
                edited(SOLVED_2_7, ("tiled += 2 * num_keys * D", "tiled += num_keys * D")),
                "counts the tiled way",
            ),
            Wrong(
                "numbers for bytes",
                edited(
                    SOLVED_2_7,
                    ("return standard * bytes_per_number, tiled * bytes_per_number", "return 4 * standard, 4 * tiled"),
                ),
                "counts bytes",
            ),
            Wrong("a tile more on a boundary", {2: "min((end // block_k + 1) * block_k, L)"}, "counts the tiled way"),
            Wrong("tiles of 64", {2: "min(-(-end // 64) * 64, L)"}, "counts the tiled way"),
        ),
        right=(
            Right(
                "lists of what crosses",
                """
def count_traffic(L, D, block_q, block_k, bytes_per_number):
    standard = [L * D, L * D, L * L, L * L, L * L, L * L, L * D, L * D]
    tiled = [L * D, L * D]
    for start in range(0, L, block_q):
        for at in range(0, min(start + block_q, L), block_k):
            tiled += [D * (min(at + block_k, L) - at)] * 2
    return sum(standard) * bytes_per_number, sum(tiled) * bytes_per_number
""",
            ),
            Right("tiles by counting", {2: "min(len(range(0, end, block_k)) * block_k, L)"}),
            Right("the standard way, line by line", {1: "(2 * L * D + L * L) + 2 * L * L + (L * L + 2 * L * D)"}),
            Right(
                "in NumPy",
                """
def count_traffic(L, D, block_q, block_k, bytes_per_element):
    import numpy as np
    ends = np.minimum(np.arange(0, L, block_q) + block_q, L)
    keys = np.minimum(np.ceil(ends / block_k).astype(np.int64) * block_k, L).sum()
    return 4 * L * (D + L) * bytes_per_element, int(2 * D * (L + keys) * bytes_per_element)
""",
            ),
        ),
    ),
}
