"""Answers that prove the check of exercise 2.4."""

from twophase_labs.machine.bank import right, wrong

RETURNS_MEANS, AVERAGES_THE = "returns means and LSE", "averages the values"
WEIGHS_EQUAL, WORKS_IN = "weighs equal scores alike", "works in base 2"
RESCALES_WHEN, MATCHES_A = "rescales when the maximum changes", "matches a softmax over all keys"
LSE, SURVIVES_HUGE, KEEPS_A = "gives the LSE in base 2", "survives huge scores", "keeps a maximum for each query"
SURVIVES_HIDDEN, FORGETS_WHAT, KEEPS_NO = "survives hidden keys", "forgets what it has read", "keeps no copies either"

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
}
