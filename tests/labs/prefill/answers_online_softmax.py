"""Answers that prove the checks of exercises 2.4 and 2.5."""

from tests.labs.prefill.variants import edited
from twophase_labs.machine.exercise import Bank, Right, Wrong

SOLVED_2_4 = """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s)
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)  # nothing seen yet: -inf less -inf would be NaN
        rescale = torch.exp2(row_max - max_safe)
        p = torch.exp2(s - max_safe)
        row_sum = row_sum * rescale + p
        acc = acc * rescale[:, None] + p[:, None] * v
        row_max = new_max
    out = (
        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    )
    return out, row_max + row_sum.log2()
"""

SOLVED_2_5 = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = m.masked_fill(m == -torch.inf, 0)  # both parts empty
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    out = weight_a[:, None] * out_a + weight_b[:, None] * out_b
    out = out / torch.where(total == 0, 1, total)[:, None]
    return out, m + total.log2()
"""

BANKS = {
    "2.4": Bank(
        wrong=(
            Wrong(
                "keeps clones of everything",
                """
def online_softmax(stream, M, D):
    scores, values = [torch.full((M,), -torch.inf)], [torch.zeros(D)]
    for s, v in stream:
        scores.append(s.clone())
        values.append(v.clone())
    scores, values = torch.stack(scores, 1), torch.stack(values)
    m = scores.amax(-1)
    m_safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - m_safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "keeps lists of numbers",
                """
def online_softmax(stream, M, D):
    scores, values = [], []
    for s, v in stream:
        scores.append(s.tolist())
        values.append(v.tolist())
    scores, values = torch.tensor(scores).reshape(-1, M).mT, torch.tensor(values).reshape(-1, D)
    if not scores.shape[1]:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    m = scores.amax(-1)
    safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "one growing tensor",
                """
def online_softmax(stream, M, D):
    scores, values = torch.zeros(M, 0), torch.zeros(0, D)
    for s, v in stream:
        scores, values = torch.cat([scores, s[:, None]], 1), torch.cat([values, v[None]])
    if not scores.shape[1]:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    m = scores.amax(-1)
    safe = m.masked_fill(m == -torch.inf, 0)
    p = torch.exp2(scores - safe[:, None])
    total = p.sum(-1)
    return p @ values / torch.where(total == 0, 1, total)[:, None], m + total.log2()
""",
                "keeps no copies either",
            ),
            Wrong(
                "at most 128 keys",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in __import__('itertools').islice(stream, 128):
        new_max = torch.maximum(row_max, s)
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)
        rescale = torch.exp2(row_max - max_safe)
        p = torch.exp2(s - max_safe)
        row_sum = row_sum * rescale + p
        acc = acc * rescale[:, None] + p[:, None] * v
        row_max = new_max
    out = (
        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    )
    return out, row_max + row_sum.log2()
""",
                "matches a softmax over all keys",
            ),
            Wrong(
                "the mean only",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / l[:, None]
""",
                "returns means and LSE",
            ),
            Wrong(
                "forgets to divide",
                edited(
                    SOLVED_2_4,
                    (
                        "    out = (\n        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]\n    )",
                        "    out = acc",
                    ),
                ),
                "averages the values",
            ),
            Wrong(
                "forgets to rescale the sums",
                edited(SOLVED_2_4, ("row_sum = row_sum * rescale + p", "row_sum = row_sum + p")),
                "averages the values",
            ),
            Wrong(
                "forgets to rescale acc",
                edited(SOLVED_2_4, ("acc = acc * rescale[:, None] + p[:, None] * v", "acc = acc + p[:, None] * v")),
                "averages the values",
            ),
            Wrong(
                "one weight is there from the start",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.zeros(M), torch.ones(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / l[:, None], m + l.log2()
""",
                "averages the values",
            ),
            Wrong(
                "keeps the last key only",
                edited(
                    SOLVED_2_4,
                    (
                        "        row_sum = row_sum * rescale + p\n        acc = acc * rescale[:, None] + p[:, None] * v",
                        "        row_sum = p\n        acc = p[:, None] * v",
                    ),
                ),
                "weighs equal scores alike",
            ),
            Wrong(
                "base e",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        safe = torch.where(new_m == -torch.inf, 0, new_m)
        p, scale = torch.exp(s - safe), torch.exp(m - safe)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log()
""",
                "works in base 2",
            ),
            Wrong(
                "no maximum",
                """
def online_softmax(stream, M, D):
    l, acc = torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        l, acc = l + torch.exp2(s), acc + torch.exp2(s)[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], l.log2()
""",
                "survives huge scores",
            ),
            Wrong(
                "a maximum that starts at a finite number",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -10_000.0), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
""",
                "survives huge scores",
            ),
            Wrong(
                "the smaller of the two",
                edited(SOLVED_2_4, ("new_max = torch.maximum(row_max, s)", "new_max = torch.minimum(row_max, s)")),
                "weighs equal scores alike",
            ),
            Wrong(
                "never rescales",
                edited(SOLVED_2_4, ("rescale = torch.exp2(row_max - max_safe)", "rescale = torch.ones_like(row_max)")),
                "rescales when the maximum changes",
            ),
            Wrong(
                "rescales the wrong way",
                edited(
                    SOLVED_2_4,
                    (
                        "rescale = torch.exp2(row_max - max_safe)",
                        "rescale = torch.exp2(max_safe - row_max).nan_to_num(0, 0)",
                    ),
                ),
                "rescales when the maximum changes",
            ),
            Wrong(
                "this score as maximum",
                edited(SOLVED_2_4, ("new_max = torch.maximum(row_max, s)", "new_max = s")),
                "survives hidden keys",
            ),
            Wrong(
                "the log-sum without its maximum",
                edited(SOLVED_2_4, ("return out, row_max + row_sum.log2()", "return out, row_sum.log2()")),
                "gives the LSE in base 2",
            ),
            Wrong(
                "the sum in place of its logarithm",
                edited(SOLVED_2_4, ("return out, row_max + row_sum.log2()", "return out, row_sum")),
                "gives the LSE in base 2",
            ),
            Wrong(
                "a natural logarithm at the end",
                edited(SOLVED_2_4, ("return out, row_max + row_sum.log2()", "return out, row_max + row_sum.log()")),
                "gives the LSE in base 2",
            ),
            Wrong(
                "minus inf less minus inf",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
""",
                "survives hidden keys",
            ),
            Wrong(
                "0 / 0 for a row that saw nothing",
                edited(
                    SOLVED_2_4,
                    (
                        "    out = (\n        acc / torch.where(row_sum == 0, 1, row_sum)[:, None]\n    )",
                        "    out = acc / row_sum[:, None]",
                    ),
                ),
                "survives hidden keys",
            ),
            Wrong(
                "keeps everything",
                """
def online_softmax(stream, M, D):
    seen = list(stream)
    if not seen:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    scores, values = (torch.stack(each) for each in zip(*seen))
    m = scores.amax(0)
    weights = torch.exp2(scores - torch.where(m == -torch.inf, 0, m))
    l = weights.sum(0)
    return weights.mT @ values / torch.where(l == 0, 1, l)[:, None], m + l.log2()
""",
                "forgets what it has read",
            ),
            Wrong(
                "one maximum for all queries",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s.max())
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)
        rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)
        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v
    out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    return out, row_max + row_sum.log2()
""",
                "keeps a maximum for each query",
            ),
            Wrong(
                "skips keys hidden from any query",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        if (s == -torch.inf).any():
            continue
        new_max = torch.maximum(row_max, s)
        max_safe = new_max.masked_fill(new_max == -torch.inf, 0)
        rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)
        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v
    out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    return out, row_max + row_sum.log2()
""",
                "survives hidden keys",
            ),
            Wrong(
                "NaN swept away at the end",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s)
        max_safe = new_max
        rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)
        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v
    out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    out = out.nan_to_num(0)
    return out, row_max + row_sum.log2()
""",
                "survives hidden keys",
            ),
            Wrong(
                "the maximum begins at -1e6",
                """
def online_softmax(stream, M, D):
    row_max, row_sum, acc = torch.full((M,), -1e6), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_max = torch.maximum(row_max, s)
        max_safe = new_max
        rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)
        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v
    out = acc / torch.where(row_sum == 0, 1, row_sum)[:, None]
    return out, row_max + row_sum.log2()
""",
                "survives huge scores",
            ),
        ),
        right=(
            Right(
                "in float64",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf).double(), torch.zeros(M).double(), torch.zeros(M, D).double()
    for s, v in stream:
        new = torch.maximum(m, s)
        safe = new.masked_fill(new == -torch.inf, 0)
        scale, p = torch.exp2(m - safe), torch.exp2(s - safe)
        m, l, acc = new, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
""",
            ),
            Right(
                "a running mean and log-sum",
                """
def online_softmax(stream, M, D):
    out, lse = torch.zeros(M, D), torch.full((M,), -torch.inf)
    for s, v in stream:
        new = torch.logaddexp2(lse, s)
        safe = torch.where(new == -torch.inf, 0, new)
        out = out * torch.exp2(lse - safe)[:, None] + torch.exp2(s - safe)[:, None] * v
        lse = new
    return out, lse
""",
            ),
            Right(
                "rescales only when needed",
                """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        if bool((s > m).any()):
            new_m = torch.maximum(m, s)
            scale = torch.where(m == -torch.inf, 0, torch.exp2(m - new_m))
            m, l, acc = new_m, l * scale, acc * scale[:, None]
        p = torch.where(s == -torch.inf, 0, torch.exp2(s - m))
        l += p
        acc += p[:, None] * v
    empty = l == 0
    out = torch.where(empty[:, None], 0, acc / l[:, None])
    return out, torch.where(empty, -torch.inf, m + l.log2())
""",
            ),
            Right(
                "the larger by where",
                edited(
                    SOLVED_2_4,
                    ("new_max = torch.maximum(row_max, s)", "new_max = torch.where(s > row_max, s, row_max)"),
                ),
            ),
            Right(
                "in tiles of eight keys",
                """
def online_softmax(stream, M, D):
    def fold(state, tile):
        m, l, a = state
        S, V = torch.stack([s for s, _ in tile], 1), torch.stack([v for _, v in tile])
        n = torch.maximum(m, S.amax(1))
        safe = torch.where(n == -torch.inf, 0, n)
        P, r = torch.exp2(S - safe[:, None]), torch.exp2(m - safe)
        return n, l * r + P.sum(1), a * r[:, None] + P @ V
    state, tile = (torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)), []
    for pair in stream:
        tile.append(pair)
        if len(tile) == 8:
            state, tile = fold(state, tile), []
    if tile:
        state = fold(state, tile)
    m, l, a = state
    return torch.where(l[:, None] > 0, a / l[:, None], 0), m + l.log2()
""",
            ),
            Right(
                "in floats of Python",
                """
def online_softmax(stream, M, D):
    import math
    rows = [[-math.inf, 0.0, [0.0] * D] for _ in range(M)]
    for s, v in stream:
        v = v.tolist()
        for row, x in zip(rows, s.tolist()):
            if x == -math.inf:
                continue
            m, l, a = row
            n = max(m, x)
            r, p = 2.0 ** (m - n), 2.0 ** (x - n)
            row[:] = [n, l * r + p, [r * i + p * j for i, j in zip(a, v)]]
    out = [[i / l if l else 0.0 for i in a] for m, l, a in rows]
    lse = [m + math.log2(l) if l else -math.inf for m, l, a in rows]
    return torch.tensor(out).reshape(M, D), torch.tensor(lse)
""",
            ),
        ),
    ),
    "2.5": Bank(
        wrong=(
            Wrong(
                "writes into the halves it was given",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = m.masked_fill(m == -torch.inf, 0)
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    out_a *= weight_a[:, None]
    out_a += weight_b[:, None] * out_b
    out_a /= torch.where(total == 0, 1, total)[:, None]
    return out_a, m + total.log2()
""",
                "leaves its inputs alone",
            ),
            Wrong(
                "hands an input back",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    if bool((lse_b == -torch.inf).all()):
        return out_a, lse_a
    m = torch.maximum(lse_a, lse_b).masked_fill(torch.maximum(lse_a, lse_b) == -torch.inf, 0)
    lse_a -= m
    lse_b -= m
    a, b = torch.exp2(lse_a), torch.exp2(lse_b)
    total = a + b
    out = (a[:, None] * out_a + b[:, None] * out_b) / torch.where(total == 0, 1, total)[:, None]
    return out, m + total.log2()
""",
                "leaves its inputs alone",
            ),
            Wrong(
                "the mean only",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid((lse_a - lse_b) * 0.6931471805599453)[:, None]
    return share * out_a + (1 - share) * out_b
""",
                "returns mean and LSE",
            ),
            Wrong(
                "the average of the halves",
                {1: "torch.ones_like(lse_a), torch.ones_like(lse_b)"},
                "weighs halves by their sums",
            ),
            Wrong("weighs by the log-sums", {1: "lse_a, lse_b"}, "weighs halves by their sums"),
            Wrong("base e", {1: "torch.exp(lse_a - m), torch.exp(lse_b - m)"}, "weighs halves by their sums"),
            Wrong("the wrong half", {1: "torch.exp2(lse_b - m), torch.exp2(lse_a - m)"}, "weighs halves by their sums"),
            Wrong(
                "forgets to divide",
                edited(SOLVED_2_5, ("out = out / torch.where(total == 0, 1, total)[:, None]", "out = out")),
                "weighs halves by their sums",
            ),
            Wrong(
                "takes nothing out",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = torch.exp2(lse_a), torch.exp2(lse_b)
    total = weight_a + weight_b
    out = (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / torch.where(total == 0, 1, total)[:, None]
    return out, total.log2()
""",
                "survives a huge LSE",
            ),
            Wrong(
                "the first half's maximum",
                {1: "torch.exp2(lse_a - lse_a), torch.exp2(lse_b - lse_a)"},
                "gives the LSE of the whole",
            ),
            Wrong("forgets what it took out", {3: "total.log2()"}, "gives the LSE of the whole"),
            Wrong("the larger log-sum", {3: "m"}, "gives the LSE of the whole"),
            Wrong("a natural logarithm", {3: "m + total.log()"}, "gives the LSE of the whole"),
            Wrong("adds the log-sums", {3: "lse_a + lse_b"}, "gives the LSE of the whole"),
            Wrong(
                "NaN when both are empty",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    return (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / total[:, None], m + total.log2()
""",
                "survives empty halves",
            ),
            Wrong(
                "0 / 0 when both are empty",
                edited(
                    SOLVED_2_5, ("out = out / torch.where(total == 0, 1, total)[:, None]", "out = out / total[:, None]")
                ),
                "survives empty halves",
            ),
            Wrong(
                "gives a part back if the other is empty",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    if (lse_b == -torch.inf).all():
        return out_a, lse_a
    if (lse_a == -torch.inf).all():
        return out_b, lse_b
    lse = torch.logaddexp2(lse_a, lse_b)
    safe = torch.where(lse == -torch.inf, 0, lse)
    return torch.exp2(lse_a - safe)[:, None] * out_a + torch.exp2(lse_b - safe)[:, None] * out_b, lse
""",
                "leaves its inputs alone",
            ),
            Wrong(
                "masks the LSE it was given",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    lse_b.masked_fill_(lse_b == -torch.inf, -1e30)
    m = m.masked_fill(m == -torch.inf, 0)
    a, b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    t = a + b
    return (a[:, None] * out_a + b[:, None] * out_b) / torch.where(t == 0, 1, t)[:, None], m + t.log2()
""",
                "leaves its inputs alone",
            ),
        ),
        right=(
            Right(
                "logaddexp2",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    return torch.exp2(lse_a - safe)[:, None] * out_a + torch.exp2(lse_b - safe)[:, None] * out_b, lse
""",
            ),
            Right(
                "a softmax over the two",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    out, lse = torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b])
    shares = torch.nan_to_num((lse * 0.6931471805599453).softmax(0))
    whole = torch.logsumexp(lse * 0.6931471805599453, 0) / 0.6931471805599453
    return (shares[:, :, None] * out).sum(0), whole
""",
            ),
            Right(
                "clamped from below",
                edited(
                    SOLVED_2_5,
                    (
                        "out = out / torch.where(total == 0, 1, total)[:, None]",
                        "out = out / total.clamp_min(1e-30)[:, None]",
                    ),
                ),
            ),
            Right(
                "row by row in floats of Python",
                """
def merge_halves(out_a, lse_a, out_b, lse_b):
    import math
    outs, lses = [], []
    for a, x, b, y in zip(out_a.tolist(), lse_a.tolist(), out_b.tolist(), lse_b.tolist()):
        m = max(x, y)
        if m == -math.inf:
            outs.append([0.0] * len(a)); lses.append(m)
            continue
        p, q = 2.0 ** (x - m), 2.0 ** (y - m)
        outs.append([(p * i + q * j) / (p + q) for i, j in zip(a, b)])
        lses.append(m + math.log2(p + q))
    return torch.tensor(outs).reshape(out_a.shape), torch.tensor(lses)
""",
            ),
        ),
    ),
}
