"""Answers that prove the check of exercise 3.13."""

from twophase_labs.machine.bank import right, wrong

READS_THE, READS_THE_WEIGHTS = "reads the weights for one sequence", "reads the weights once, K and V for each"
COMPUTES_FOR, WAITS_FOR = "computes for each sequence", "waits for the slower of the two"
FINDS_THE, FINDS_A = "finds the batch where they meet", "finds a batch where they meet exactly"
SAYS_NONE, SAYS_NONE_IF = "says None if there is none", "says None if both grow alike"

INTENSITY = """
def step_seconds(work, machine, batch):
    num_bytes = work.weight_bytes + work.kv_bytes * batch
    intensity = work.flops * batch / num_bytes
    attainable = min(machine.flop_rate, intensity * machine.bandwidth)
    return work.flops * batch / attainable

def ridge_batch(work, machine):
    ridge = machine.flop_rate / machine.bandwidth
    spare = work.flops - ridge * work.kv_bytes
    return None if spare <= 0 else math.ceil(ridge * work.weight_bytes / spare)
"""
FRACTIONS = """
from fractions import Fraction

def step_seconds(work, machine, batch):
    b, r = (Fraction(machine.bandwidth), Fraction(machine.flop_rate))
    return float(max((work.weight_bytes + batch * work.kv_bytes) / b, batch * work.flops / r))

def ridge_batch(work, machine):
    b, r = (Fraction(machine.bandwidth), Fraction(machine.flop_rate))
    more = work.flops / r - work.kv_bytes / b
    return None if more <= 0 else -int(-(work.weight_bytes / b / more) // 1)
"""

# fmt: off
BANKS = {
    "3.13": (
        wrong("takes the faster", {3: "min(moving, computing)"}, by=READS_THE),
        wrong("one sequence's K and V only", "batch * work.kv_bytes", "work.kv_bytes", by=READS_THE_WEIGHTS),
        wrong("one token's arithmetic", {2: "work.flops / machine.flop_rate"}, by=COMPUTES_FOR),
        wrong("adds the two up", {3: "moving + computing"}, by=WAITS_FOR),
        wrong("forgets K and V", {4: "one_token"}, by=FINDS_THE),
        wrong("searches up to 1024", "gap = one_token - one_context",
              "for b in range(1, 1025):\n        if b * work.flops / machine.flop_rate >= (work.weight_bytes + b * work.kv_bytes) / machine.bandwidth:\n            return b\n    return None\n    gap = one_token - one_context",
              by=FINDS_A),
        wrong("a batch although there is none", {5: "False"}, by=SAYS_NONE),
        wrong("ZeroDivisionError when both grow alike", "gap <= 0", "gap < 0", by=SAYS_NONE_IF),
        right("by arithmetic intensity", INTENSITY),
        right("fractions", FRACTIONS),
    ),
}
