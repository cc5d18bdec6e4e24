"""Answers that prove the check of exercise 5.15."""

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

BANKS = {
    "5.15": Bank(
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
}
