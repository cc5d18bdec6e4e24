"""Answers that prove the check of exercise 1.1."""

from twophase_labs.machine.bank import right, wrong

GIVES_ONE, TURNS_EACH = "gives one number", "turns each row into log-probabilities"
LEAVES_OUT, ADDS_UP, MATCHES_A = "leaves out the last row", "adds up over the text", "matches a loop over the tokens"
SURVIVES_CONFIDENT, LEAVES_ITS = "survives confident logits", "leaves its inputs alone"

LOOP = """
def text_log_prob(logits, ids):
    total = 0.0
    for t in range(len(ids) - 1):
        total += float(logits[t, ids[t + 1]] - logits[t].logsumexp(0))
    return total
"""

# fmt: off
BANKS = {
    "1.1": (
        wrong("a vector of terms", {4: "picked[:, 0]"}, by=GIVES_ONE),
        wrong("no softmax at all", {1: "logits"}, by=TURNS_EACH),
        wrong("each row scores its own token", {2: "log_probs", 3: "ids"}, by=LEAVES_OUT),
        wrong("the mean, as in a loss", {4: "picked.mean()"}, by=ADDS_UP),
        wrong("adds in half precision", {4: "picked.half().sum().float()"}, by=ADDS_UP),
        wrong("the rows cut, and the wrong tokens", {3: "ids[:-1]"}, by=MATCHES_A),
        wrong("the log of a softmax", {1: "logits.softmax(-1).log()"}, by=SURVIVES_CONFIDENT),
        wrong("in place",
              "log_probs = logits.log_softmax(-1)\n    rows = log_probs[:-1]\n    tokens = ids[1:]\n    picked = rows.gather(-1, tokens[:, None])  # from each row the entry of its token\n    return picked.sum()",
              "logits -= logits.logsumexp(-1, keepdim=True)\n    return logits[:-1].gather(-1, ids[1:, None]).sum()",
              by=LEAVES_ITS),
        right("a loop", LOOP),
        right("logsumexp", {1: "logits - logits.logsumexp(-1, keepdim=True)"}),
    ),
}
