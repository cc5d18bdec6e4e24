"""Answers that prove the check of exercise 3.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

WEIGHTS, CONTEXTS, DIVIDES = (
    "reads every weight once",
    "reads every sequence's own K and V",
    "divides by the bandwidth",
)
A_LOOP = """
def bytes_per_step(num_weights, bytes_per_weight, kv_bytes_per_token, contexts):
    kv_bytes = 0
    for length in contexts:
        kv_bytes += length * kv_bytes_per_token
    return bytes_per_weight * num_weights, kv_bytes


def tokens_per_second(num_bytes, num_sequences, bandwidth):
    steps_per_second = bandwidth / num_bytes
    return num_sequences * steps_per_second
"""
WITH_NUMPY = """
def bytes_per_step(num_weights, bytes_per_weight, kv_bytes_per_token, contexts):
    import math
    return math.prod((num_weights, bytes_per_weight)), kv_bytes_per_token * sum(int(c) for c in contexts)


def tokens_per_second(num_bytes, num_sequences, bandwidth):
    return num_sequences / num_bytes * bandwidth
"""
RETURNS_THE_SUM = """
def bytes_per_step(num_weights, bytes_per_weight, kv_bytes_per_token, contexts):
    return num_weights * bytes_per_weight + kv_bytes_per_token * sum(contexts)


def tokens_per_second(num_bytes, num_sequences, bandwidth):
    return num_sequences * bandwidth / num_bytes
"""

BANKS = {
    "3.2": Bank(
        wrong=(
            Wrong("weights per sequence", {1: "num_weights * bytes_per_weight * len(contexts)"}, WEIGHTS),
            Wrong("counts weights, not bytes", {1: "num_weights"}, WEIGHTS),
            Wrong("always two bytes", {1: "2 * num_weights"}, WEIGHTS),
            Wrong("returns the sum", RETURNS_THE_SUM, WEIGHTS),
            Wrong("the longest context only", {2: "kv_bytes_per_token * max(contexts)"}, CONTEXTS),
            Wrong("one token per sequence", {2: "kv_bytes_per_token * len(contexts)"}, CONTEXTS),
            Wrong("padded to the longest", {2: "kv_bytes_per_token * max(contexts) * len(contexts)"}, CONTEXTS),
            Wrong("K only", {2: "kv_bytes_per_token * sum(contexts) // 2"}, CONTEXTS),
            Wrong("steps per second", {4: "1 / step_s"}, DIVIDES),
            Wrong("upside down", {3: "bandwidth / num_bytes"}, DIVIDES),
            Wrong("shares the bandwidth out", {4: "1 / step_s / num_sequences"}, DIVIDES),
            Wrong("the seconds", {4: "step_s"}, DIVIDES),
        ),
        right=(Right("a loop over contexts", A_LOOP), Right("in another order", WITH_NUMPY)),
    ),
}
