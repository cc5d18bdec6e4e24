"""Answers that prove the check of exercises 5.14 and 5.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SURPRISE, MEAN, CHOICES, NONE, DIVERGENCE, IMPOSSIBLE, LARGE = (
    "gives the surprise at each target",
    "averages before it exponentiates",
    "counts equal choices",
    "finds no difference where there is none",
    "gives the divergence at each position",
    "survives impossible tokens",
    "survives large logits",
)
BY_LIBRARY = """
import torch.nn.functional as F


def surprises(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


def perplexity(logits, targets):
    return float(torch.exp(F.cross_entropy(logits, targets)))


def divergences(before, after):
    p, q = before.log_softmax(-1), after.log_softmax(-1)
    return F.kl_div(q, p.exp(), reduction="none").nan_to_num(0.0).sum(-1)
"""
BY_ROWS = """
def surprises(logits, targets):
    return torch.stack([row.logsumexp(0) - row[t] for row, t in zip(logits, targets.tolist())])


def perplexity(logits, targets):
    return math.exp(sum(surprises(logits, targets).tolist()) / len(targets))


def divergences(before, after):
    found = []
    for one, other in zip(before, after):
        possible = one > -math.inf
        log_p, log_q = one.log_softmax(0)[possible], other.log_softmax(0)[possible]
        found.append((log_p.exp() * (log_p - log_q)).sum())
    return torch.stack(found)
"""
NAIVE_SOFTMAX = """
def surprises(logits, targets):
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return -p[torch.arange(len(targets)), targets].log()


def perplexity(logits, targets):
    return surprises(logits, targets).mean().exp().item()


def divergences(before, after):
    p = before.exp() / before.exp().sum(-1, keepdim=True)
    q = after.exp() / after.exp().sum(-1, keepdim=True)
    return torch.where(p > 0, p * (p / q).log(), 0).sum(-1)
"""

CLEAR, WITHIN, WIDTH, TWO, EQUAL = (
    "decides where it is clear",
    "reads on while the interval contains the limit",
    "makes the interval as wide as z says",
    "does not decide from fewer than two",
    "lets the mean decide where all are equal",
)
WITHIN_OR_WIDTH = WIDTH
ONE_VALUE = """
def decide(values, limit, z):
    mean = values.mean().item()
    margin = z * values.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    if mean + margin <= limit:
        return "pass"
    return "FAIL" if mean - margin > limit else "read on"
"""
BY_NUMPY = """
def decide(values, limit, z):
    values = np.asarray(values, dtype=np.float64)
    if values.size < 2:
        return "read on"
    error = z * values.std(ddof=1) / np.sqrt(values.size)
    if values.mean() + error <= limit:
        return "pass"
    if values.mean() - error > limit:
        return "FAIL"
    return "read on"
"""
FROM_THE_ENDS = """
def decide(values, limit, z):
    if len(values) <= 1:
        return "read on"
    var, mean = torch.var_mean(values)
    margin = z * (var / len(values)).sqrt()
    low, high = (mean - margin).item(), (mean + margin).item()
    return "read on" if low <= limit < high else "pass" if high <= limit else "FAIL"
"""

BANKS = {
    "5.14": Bank(
        wrong=(
            Wrong("at the likeliest token", {1: "-log_probs.amax(-1)"}, rejected_by=SURPRISE),
            Wrong("the sign", {1: "log_probs[torch.arange(len(targets)), targets]"}, rejected_by=SURPRISE),
            Wrong(
                "in bits", {1: "-log_probs[torch.arange(len(targets)), targets] / math.log(2)"}, rejected_by=SURPRISE
            ),
            Wrong("every row with every target", {1: "-log_probs[:, targets]"}, rejected_by=SURPRISE),
            Wrong("the first target for all", {1: "-log_probs[:, targets[0]]"}, rejected_by=SURPRISE),
            Wrong("the mean of exp", {2: "surprises(logits, targets).exp().mean().item()"}, rejected_by=MEAN),
            Wrong("the sum", {2: "surprises(logits, targets).sum().exp().item()"}, rejected_by=MEAN),
            Wrong("the loss", {2: "surprises(logits, targets).mean().item()"}, rejected_by=MEAN),
            Wrong("base 2", {2: "2 ** surprises(logits, targets).mean().item()"}, rejected_by=MEAN),
            Wrong("of logits", {4: "torch.where(p > 0, p * (before - after), 0)"}, rejected_by=NONE),
            Wrong("backwards", {3: "log_q.exp()"}, rejected_by=DIVERGENCE),
            Wrong("the other sign", {4: "torch.where(p > 0, p * (log_q - log_p), 0)"}, rejected_by=DIVERGENCE),
            Wrong("without weights", {4: "torch.where(p > 0, log_p - log_q, 0)"}, rejected_by=DIVERGENCE),
            Wrong("as distances", {4: "torch.where(p > 0, p * (log_p - log_q).abs(), 0)"}, rejected_by=DIVERGENCE),
            Wrong(
                "the likeliest alone",
                {4: "torch.where(p == p.amax(-1, keepdim=True), p * (log_p - log_q), 0)"},
                rejected_by=DIVERGENCE,
            ),
            Wrong("NaN under a mask", {4: "p * (log_p - log_q)"}, rejected_by=IMPOSSIBLE),
            Wrong("exp of logits", NAIVE_SOFTMAX, rejected_by=LARGE),
        ),
        right=(
            Right("a tensor", {2: "surprises(logits, targets).mean().exp()"}),
            Right("by the library", BY_LIBRARY),
            Right("row by row", BY_ROWS),
        ),
    ),
    "5.15": Bank(
        wrong=(
            Wrong("two verdicts", {2: "mean + margin <= limit or mean <= limit"}, WITHIN),
            Wrong("fails what is not proved", {3: "True"}, WITHIN),
            Wrong("the wrong ends", {2: "mean - margin <= limit", 3: "mean + margin > limit"}, WITHIN),
            Wrong("the other way round", {2: "mean - margin > limit", 3: "mean + margin <= limit"}, CLEAR),
            Wrong("the spread of single values", {1: "z * values.std()"}, WITHIN_OR_WIDTH),
            Wrong("the variance", {1: "z * values.var() / math.sqrt(len(values))"}, WITHIN_OR_WIDTH),
            Wrong("divides by n, not its root", {1: "z * values.std() / len(values)"}, WITHIN),
            Wrong("n in the spread", {1: "z * values.std(unbiased=False) / math.sqrt(len(values))"}, WIDTH),
            Wrong("always 1.96", {1: "1.96 * values.std() / math.sqrt(len(values))"}, WIDTH),
            Wrong("just kept is not kept", {2: "mean + margin < limit"}, EQUAL),
            Wrong("just kept fails", {2: "mean + margin < limit", 3: "mean - margin >= limit"}, EQUAL),
            Wrong("decides from one", ONE_VALUE, TWO),
        ),
        right=(
            Right("by numpy", BY_NUMPY),
            Right("from the ends", FROM_THE_ENDS),
        ),
    ),
}
