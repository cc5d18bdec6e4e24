"""Answers that prove the checks of exercises 2.8 and 2.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LIST_IT = """
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
MEAN_ONLY = """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / l[:, None]
"""
UNGUARDED = """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
"""
FINITE_SENTINEL = """
def online_softmax(stream, M, D):
    m, l, acc = torch.full((M,), -10_000.0), torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], m + l.log2()
"""
NO_MAXIMUM = """
def online_softmax(stream, M, D):
    l, acc = torch.zeros(M), torch.zeros(M, D)
    for s, v in stream:
        l, acc = l + torch.exp2(s), acc + torch.exp2(s)[:, None] * v
    return acc / torch.where(l == 0, 1, l)[:, None], l.log2()
"""
COUNTS_ONE_FROM_THE_START = """
def online_softmax(stream, M, D):
    m, l, acc = torch.zeros(M), torch.ones(M), torch.zeros(M, D)
    for s, v in stream:
        new_m = torch.maximum(m, s)
        p, scale = torch.exp2(s - new_m), torch.exp2(m - new_m)
        m, l, acc = new_m, l * scale + p, acc * scale[:, None] + p[:, None] * v
    return acc / l[:, None], m + l.log2()
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
MEANS_AND_SUMS = """
def online_softmax(stream, M, D):
    out, lse = torch.zeros(M, D), torch.full((M,), -torch.inf)
    for s, v in stream:
        new = torch.logaddexp2(lse, s)
        safe = torch.where(new == -torch.inf, 0, new)
        out = out * torch.exp2(lse - safe)[:, None] + torch.exp2(s - safe)[:, None] * v
        lse = new
    return out, lse
"""
ONLY_WHEN_NEEDED = """
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
UNGUARDED_MERGE = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = torch.exp2(lse_a - m), torch.exp2(lse_b - m)
    total = weight_a + weight_b
    return (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / total[:, None], m + total.log2()
"""
NO_MAXIMUM_TAKEN_OUT = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    weight_a, weight_b = torch.exp2(lse_a), torch.exp2(lse_b)
    total = weight_a + weight_b
    out = (weight_a[:, None] * out_a + weight_b[:, None] * out_b) / torch.where(total == 0, 1, total)[:, None]
    return out, total.log2()
"""
MEAN_WITHOUT_SUM = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid((lse_a - lse_b) * 0.6931471805599453)[:, None]
    return share * out_a + (1 - share) * out_b
"""
LOGADDEXP = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    return torch.exp2(lse_a - safe)[:, None] * out_a + torch.exp2(lse_b - safe)[:, None] * out_b, lse
"""
STACKED = """
def merge_halves(out_a, lse_a, out_b, lse_b):
    out, lse = torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b])
    shares = torch.nan_to_num((lse * 0.6931471805599453).softmax(0))
    whole = torch.logsumexp(lse * 0.6931471805599453, 0) / 0.6931471805599453
    return (shares[:, :, None] * out).sum(0), whole
"""

BANKS = {
    "2.8": Bank(
        wrong=(
            Wrong("the mean only", MEAN_ONLY, "returns means and log-sums"),
            Wrong("forgets to divide", {6: "acc"}, "averages the values"),
            Wrong("forgets to rescale the sums", {4: "row_sum + p"}, "averages the values"),
            Wrong("forgets to rescale acc", {5: "acc + p[:, None] * v"}, "averages the values"),
            Wrong("one weight is there from the start", COUNTS_ONE_FROM_THE_START, "averages the values"),
            Wrong("keeps the last key only", {4: "p", 5: "p[:, None] * v"}, "weighs equal scores alike"),
            Wrong("base e", BASE_E, "works in base 2"),
            Wrong("no maximum", NO_MAXIMUM, "survives huge scores"),
            Wrong("a maximum that starts at a finite number", FINITE_SENTINEL, "survives huge scores"),
            Wrong("the smaller of the two", {1: "torch.minimum(row_max, s)"}, "weighs equal scores alike"),
            Wrong("never rescales", {2: "torch.ones_like(row_max)"}, "rescales when the maximum changes"),
            Wrong(
                "rescales the wrong way",
                {2: "torch.exp2(max_safe - row_max).nan_to_num(0, 0)"},
                "rescales when the maximum changes",
            ),
            Wrong("this score as maximum", {1: "s"}, "survives hidden keys"),
            Wrong("the log-sum without its maximum", {7: "row_sum.log2()"}, "gives the base-2 log-sum"),
            Wrong("the sum in place of its logarithm", {7: "row_sum"}, "gives the base-2 log-sum"),
            Wrong("a natural logarithm at the end", {7: "row_max + row_sum.log()"}, "gives the base-2 log-sum"),
            Wrong("minus inf less minus inf", UNGUARDED, "survives hidden keys"),
            Wrong("0 / 0 for a row that saw nothing", {6: "acc / row_sum[:, None]"}, "survives hidden keys"),
            Wrong("keeps everything", LIST_IT, "forgets what it has read"),
        ),
        right=(
            Right("a running mean and log-sum", MEANS_AND_SUMS),
            Right("rescales only when needed", ONLY_WHEN_NEEDED),
            Right("the larger by where", {1: "torch.where(s > row_max, s, row_max)"}),
        ),
    ),
    "2.9": Bank(
        wrong=(
            Wrong("the mean only", MEAN_WITHOUT_SUM, "returns mean and log-sum"),
            Wrong(
                "the average of the halves",
                {1: "torch.ones_like(lse_a), torch.ones_like(lse_b)"},
                "weighs halves by their sums",
            ),
            Wrong("weighs by the log-sums", {1: "lse_a, lse_b"}, "weighs halves by their sums"),
            Wrong("base e", {1: "torch.exp(lse_a - m), torch.exp(lse_b - m)"}, "weighs halves by their sums"),
            Wrong("the wrong half", {1: "torch.exp2(lse_b - m), torch.exp2(lse_a - m)"}, "weighs halves by their sums"),
            Wrong("forgets to divide", {4: "out"}, "weighs halves by their sums"),
            Wrong("takes nothing out", NO_MAXIMUM_TAKEN_OUT, "survives huge log-sums"),
            Wrong(
                "the first half's maximum",
                {1: "torch.exp2(lse_a - lse_a), torch.exp2(lse_b - lse_a)"},
                "gives the log-sum of the whole",
            ),
            Wrong("forgets what it took out", {5: "total.log2()"}, "gives the log-sum of the whole"),
            Wrong("the larger log-sum", {5: "m"}, "gives the log-sum of the whole"),
            Wrong("a natural logarithm", {5: "m + total.log()"}, "gives the log-sum of the whole"),
            Wrong("adds the log-sums", {5: "lse_a + lse_b"}, "gives the log-sum of the whole"),
            Wrong("NaN when both are empty", UNGUARDED_MERGE, "survives empty halves"),
            Wrong(
                "0 / 0 when both are empty",
                {4: "out / total[:, None]"},
                "survives empty halves",
            ),
        ),
        right=(
            Right("logaddexp2", LOGADDEXP),
            Right("a softmax over the two", STACKED),
            Right(
                "clamped from below",
                {4: "out / total.clamp_min(1e-30)[:, None]"},
            ),
        ),
    ),
}
