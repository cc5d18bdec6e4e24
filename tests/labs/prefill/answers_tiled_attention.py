"""Answers that prove the check of exercise 2.5."""

from twophase_labs.machine.bank import right, wrong

STORES_EVERY, AVERAGES_THE, HIDES_THE = "stores every row once", "averages the values", "hides the future"
SEES_THE, GIVES_EXACT, SURVIVES_HUGE = "sees the past and itself", "gives exact attention", "survives huge scores"
MOVES_TILES, LEAVES_OUT = "moves tiles, never the whole", "leaves out what is hidden"
NEEDS_LITTLE = "needs little fast memory"

EVERYTHING_AT_ONCE = """
def tiled_attention(memory, L, D, block_q, block_k):
    q, k, v = memory.load("q"), memory.load("k"), memory.load("v")
    scores = (q @ k.mT / D**0.5).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    memory.store("out", 0, scores.softmax(-1) @ v)
"""
COLLECTS_THE_TILES_OF = """
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
"""
FROM_RIGHT_TO_LEFT = """
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
"""
# fmt: off
BANKS = {
    "2.5": (
        wrong("a key tile past the end", {1: "range(0, start + block_q, block_k)"}, by=STORES_EVERY),
        wrong("forgets to divide", {4: "acc"}, by=AVERAGES_THE),
        wrong("the mask one key late", "rows[:, None]", "rows[:, None] + 1", by=HIDES_THE),
        wrong("stops at the query tile's first token", {1: "range(0, start + 1, block_k)"}, by=SEES_THE),
        wrong("always eight numbers", "D**0.5", "8**0.5", by=GIVES_EXACT),
        wrong("no maximum", "torch.maximum(row_max, scores.amax(-1))", "torch.zeros(len(q))", by=SURVIVES_HUGE),
        wrong("everything at once", EVERYTHING_AT_ONCE, by=MOVES_TILES),
        wrong("all key tiles", {1: "range(0, L, block_k)"}, by=LEAVES_OUT),
        wrong("collects the tiles of a row of queries", COLLECTS_THE_TILES_OF, by=NEEDS_LITTLE),
        right("from right to left", FROM_RIGHT_TO_LEFT),
        right("the maximum of both at once", ".maximum(row_max, scores.amax(-1)",
              ".cat([row_max[:, None], scores], dim=-1).amax(-1"),
    ),
}
