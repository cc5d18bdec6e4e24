"""Answers that prove the checks of exercises 2.4 and 2.5."""

from twophase_labs.machine.bank import right, wrong

RETURNS_MEANS, AVERAGES_THE = "returns means and LSE", "averages the values"
WEIGHS_EQUAL, WORKS_IN = "weighs equal scores alike", "works in base 2"
RESCALES_WHEN, MATCHES_A = "rescales when the maximum changes", "matches a softmax over all keys"
LSE, SURVIVES_HUGE, KEEPS_A = "gives the LSE in base 2", "survives huge scores", "keeps a maximum for each query"
SURVIVES_HIDDEN, FORGETS_WHAT, KEEPS_NO = "survives hidden keys", "forgets what it has read", "keeps no copies either"
RETURNS_MEAN, WEIGHS_HALVES = "returns mean and LSE", "weighs halves by their sums"
GIVES_THE, SURVIVES_A, SURVIVES_EMPTY = "gives the LSE of the whole", "survives a huge LSE", "survives empty halves"
LEAVES_ITS = "leaves its inputs alone"

THE_MEAN_ONLY = """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / l[:, None]
"""
BASE_E = """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        safe = torch.where(new_m == -torch.inf, 0, new_m)
        p, scale = torch.exp(s - safe), torch.exp(m - safe)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log()
"""
KEEPS_EVERYTHING = """
def online_softmax(stream, M, D):
    seen = list(stream)
    if not seen:
        return torch.zeros(M, D), torch.full((M,), -torch.inf)
    scores, values = (torch.stack(each) for each in zip(*seen))
    m = scores.amax(0)
    weights = torch.exp2(scores - torch.where(m == -torch.inf, 0, m))
    l = weights.sum(0)
    return weights.mT @ values / torch.where(l == 0, 1, l)[:, None], m + l.log2()
"""
KEEPS_CLONES_OF_EVERYTHING = """
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
"""
A_RUNNING_MEAN_AND = """
def online_softmax(stream, M, D):
    out, lse = torch.zeros(M, D), torch.full((M,), -torch.inf)
    for s, v in stream:
        new = torch.logaddexp2(lse, s)
        safe = torch.where(new == -torch.inf, 0, new)
        out = out * torch.exp2(lse - safe)[:, None] + torch.exp2(s - safe)[:, None] * v
        lse = new
    return out, lse
"""
RESCALES_ONLY_WHEN_NEEDED = """
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
"""
THE_MEAN_ONLY_2 = """m = torch.maximum(lse_a, lse_b)
    m = m.masked_fill(m == -torch.inf, 0)  # both parts empty
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    out = weight_a[:, None] * out_a + weight_b[:, None] * out_b
    out = out / torch.where(total == 0, 1, total)[:, None]
    return out, m + total.log2()"""
TAKES_NOTHING_OUT = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = torch.exp2(lse_a), torch.exp2(lse_b)
    total = weight_a + weight_b
    out = (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / torch.where(total == 0, 1, total)[:, None]
    return out, total.log2()
"""
A_SOFTMAX_OVER_THE = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    out, lse = torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b])
    shares = torch.nan_to_num((lse * 0.6931471805599453).softmax(0))
    whole = torch.logsumexp(lse * 0.6931471805599453, 0) / 0.6931471805599453
    return (shares[:, :, None] * out).sum(0), whole
"""
LOGADDEXP2 = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    return torch.exp2(lse_a - safe)[:, None] * out_a + torch.exp2(lse_b - safe)[:, None] * out_b, lse
"""

# fmt: off
BANKS = {
    "2.4": (
        wrong("the mean only", THE_MEAN_ONLY, by=RETURNS_MEANS),
        wrong("forgets to rescale the sums", "row_sum * rescale", "row_sum", by=AVERAGES_THE),
        wrong("the smaller of the two", ".maximum", ".minimum", by=WEIGHS_EQUAL),
        wrong("base e", BASE_E, by=WORKS_IN),
        wrong("never rescales", ".exp2(row_max - max_safe", ".ones_like(row_max", by=RESCALES_WHEN),
        wrong("at most 128 keys", "stream:", "__import__('itertools').islice(stream, 128):",
              "rescale, p = torch.exp2(row_max - max_safe), torch.exp2(s - max_safe)\n        row_max, row_sum, acc = new_max, row_sum * rescale + p, acc * rescale[:, None] + p[:, None] * v",
              "rescale = torch.exp2(row_max - max_safe)\n        p = torch.exp2(s - max_safe)\n        row_sum = row_sum * rescale + p\n        acc = acc * rescale[:, None] + p[:, None] * v\n        row_max = new_max",
              by=MATCHES_A),
        wrong("a natural logarithm at the end", "row_sum.log2", "row_sum.log", by=LSE),
        wrong("the maximum begins at -1e6", "torch.full((M,), -torch.inf)", "torch.full((M,), -1000000.0)",
              ".masked_fill(new_max == -torch.inf, 0)", "", by=SURVIVES_HUGE),
        wrong("one maximum for all queries", "torch.maximum(row_max, s)", "torch.maximum(row_max, s.max())",
              by=KEEPS_A),
        wrong("this score as maximum", "torch.maximum(row_max, s)", "s", by=SURVIVES_HIDDEN),
        wrong("keeps everything", KEEPS_EVERYTHING, by=FORGETS_WHAT),
        wrong("keeps clones of everything", KEEPS_CLONES_OF_EVERYTHING, by=KEEPS_NO),
        right("a running mean and log-sum", A_RUNNING_MEAN_AND),
        right("rescales only when needed", RESCALES_ONLY_WHEN_NEEDED),
    ),
    "2.5": (
        wrong("the mean only", THE_MEAN_ONLY_2,
              "share = torch.sigmoid((lse_a - lse_b) * 0.6931471805599453)[:, None]\n    return share * out_a + (1 - share) * out_b",
              by=RETURNS_MEAN),
        wrong("weighs by the log-sums", {1: "lse_a, lse_b"}, by=WEIGHS_HALVES),
        wrong("base e", {1: "torch.exp(lse_a - m), torch.exp(lse_b - m)"}, by=WEIGHS_HALVES),
        wrong("the larger log-sum", {3: "m"}, by=GIVES_THE),
        wrong("forgets what it took out", {3: "total.log2()"}, by=GIVES_THE),
        wrong("takes nothing out", TAKES_NOTHING_OUT, by=SURVIVES_A),
        wrong("0 / 0 when both are empty", "torch.where(total == 0, 1, total)", "total", by=SURVIVES_EMPTY),
        wrong("writes into the halves it was given",
              "out = weight_a[:, None] * out_a + weight_b[:, None] * out_b\n    out = out / torch.where(total == 0, 1, total)[:, None]\n    return out, m + total.log2()",
              "out_a *= weight_a[:, None]\n    out_a += weight_b[:, None] * out_b\n    out_a /= torch.where(total == 0, 1, total)[:, None]\n    return (out_a, m + total.log2())",
              by=LEAVES_ITS),
        right("a softmax over the two", A_SOFTMAX_OVER_THE),
        right("logaddexp2", LOGADDEXP2),
    ),
}
