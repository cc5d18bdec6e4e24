"""Answers that prove the check of exercise 1.1."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

LOOP = """
def text_log_prob(logits, ids):
    total = 0.0
    for t in range(len(ids) - 1):
        total += float(logits[t, ids[t + 1]] - logits[t].logsumexp(0))
    return total
"""
IN_PLACE = """
def text_log_prob(logits, ids):
    logits -= logits.logsumexp(-1, keepdim=True)
    return logits[:-1].gather(-1, ids[1:, None]).sum()
"""

BANKS = {
    "1.1": Bank(
        wrong=(
            Wrong("no softmax at all", {1: "logits"}, "turns each row into log-probabilities"),
            Wrong("softmax over the positions", {1: "logits.log_softmax(0)"}, "turns each row into log-probabilities"),
            Wrong("each row scores its own token", {2: "log_probs", 3: "ids"}, "leaves out the last row"),
            Wrong("shifted the wrong way", {2: "log_probs[1:]", 3: "ids[:-1]"}, "leaves out the last row"),
            Wrong("the rows cut, and the wrong tokens", {3: "ids[:-1]"}, "matches a loop over the tokens"),
            Wrong("the mean, as in a loss", {4: "picked.mean()"}, "adds up over the text"),
            Wrong("a vector of terms", {4: "picked[:, 0]"}, "gives one number"),
            Wrong("minus the log-probability", {4: "-picked.sum()"}, "matches a loop over the tokens"),
            Wrong("adds probabilities", {1: "logits.softmax(-1)"}, "matches a loop over the tokens"),
            Wrong("the log of a softmax", {1: "logits.softmax(-1).log()"}, "survives confident logits"),
            Wrong("in place", IN_PLACE, "leaves its inputs alone"),
        ),
        right=(
            Right("a loop", LOOP),
            Right("logsumexp", {1: "logits - logits.logsumexp(-1, keepdim=True)"}),
            Right("a Python number", {4: "picked.sum().item()"}),
        ),
    ),
}
