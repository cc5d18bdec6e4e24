"""Answers that prove the checks of exercises 5.14 and 5.15."""

from twophase_labs.machine.bank import right, wrong

SURPRISE, MEAN = "gives the surprise at each target", "averages before it exponentiates"
CHOICES, NONE = "counts equal choices", "finds no difference where there is none"
DIVERGENCE, IMPOSSIBLE = "gives the divergence at each position", "survives impossible tokens"
TELLS_WHAT, MEASURES_ANY, LARGE = "tells what became impossible", "measures any surprise", "survives large logits"
CLEAR, WITHIN = "decides where it is clear", "reads on while the interval contains the limit"
WIDTH, TWO = "makes the interval as wide as z says", "does not decide from fewer than two"
EQUAL = "lets the mean decide where all are equal"

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
ONE_VALUE = """
def decide(values, limit, z):
    mean = values.mean().item()
    margin = z * values.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    if mean + margin <= limit:
        return "pass"
    return "FAIL" if mean - margin > limit else "read on"
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

# fmt: off
BANKS = {
    "5.14": (
        wrong("at the likeliest token", {1: "-log_probs.amax(-1)"}, by=SURPRISE),
        wrong("the loss", {2: "surprises(logits, targets).mean().item()"}, by=MEAN),
        wrong("perplexity capped at 1e4", {2: "surprises(logits, targets).mean().clamp(max=9.2).exp().item()"},
              by=CHOICES),
        wrong("of logits", "log_p - log_q", "before - after", by=NONE),
        wrong("the other sign", "log_p - log_q", "log_q - log_p", by=DIVERGENCE),
        wrong("NaN under a mask", {4: "p * (log_p - log_q)"}, by=IMPOSSIBLE),
        wrong("what became impossible counts 0", {4: "(p * (log_p - log_q)).nan_to_num(0, posinf=0, neginf=0)"},
              by=TELLS_WHAT),
        wrong("surprises capped at 100", {1: "-log_probs[torch.arange(len(targets)), targets].clamp(min=-20)"},
              by=MEASURES_ANY),
        wrong("exp of logits", NAIVE_SOFTMAX, by=LARGE),
        right("row by row", BY_ROWS),
        right("a tensor of one element", {2: "surprises(logits, targets).mean().exp()"}),
    ),
    "5.15": (
        wrong("the other way round", {2: "mean - margin > limit", 3: "mean + margin <= limit"}, by=CLEAR),
        wrong("fails what is not proved", {3: "True"}, by=WITHIN),
        wrong("divides by n, not its root", {1: "z * values.std() / len(values)"}, by=WITHIN),
        wrong("two verdicts", {2: "mean + margin <= limit or mean <= limit"}, by=WITHIN),
        wrong("the spread of single values", {1: "z * values.std()"}, by=WIDTH),
        wrong("the variance", "values.std", "values.var", by=WIDTH),
        wrong("decides from one", ONE_VALUE, by=TWO),
        wrong("just kept fails", {2: "mean + margin < limit", 3: "mean - margin >= limit"}, by=EQUAL),
        right("from the ends", FROM_THE_ENDS),
        right("by numpy", BY_NUMPY),
    ),
}
