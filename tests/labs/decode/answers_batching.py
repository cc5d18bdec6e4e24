"""Answers that prove the check of exercise 3.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SEARCHES = """
def step_seconds(work, machine, batch):
    moving = (work.weight_bytes + batch * work.kv_bytes) / machine.bandwidth
    computing = work.flops * batch / machine.flop_rate
    return moving if moving > computing else computing


def ridge_batch(work, machine):
    def waits_for_memory(batch):
        return step_seconds(work, machine, batch) > batch * work.flops / machine.flop_rate

    low, high = 0, 1
    while waits_for_memory(high):
        low, high = high, 2 * high
        if high > 10**15:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if waits_for_memory(middle) else (low, middle)
    return high
"""
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

BANKS = {
    "3.15": Bank(
        wrong=(
            Wrong(
                "reads the weights for every sequence",
                {1: "batch * (work.weight_bytes + work.kv_bytes) / machine.bandwidth"},
                rejected_by="reads the weights once, K and V for each",
            ),
            Wrong(
                "one sequence's K and V only",
                {1: "(work.weight_bytes + work.kv_bytes) / machine.bandwidth"},
                rejected_by="reads the weights once, K and V for each",
            ),
            Wrong(
                "multiplies by the bandwidth",
                {1: "(work.weight_bytes + batch * work.kv_bytes) * machine.bandwidth"},
                rejected_by="reads the weights for one sequence",
            ),
            Wrong(
                "one token's arithmetic",
                {2: "work.flops / machine.flop_rate"},
                rejected_by="computes for each sequence",
            ),
            Wrong("adds the two up", {3: "moving + computing"}, rejected_by="waits for the slower of the two"),
            Wrong("takes the faster", {3: "min(moving, computing)"}, rejected_by="reads the weights for one sequence"),
            Wrong("forgets K and V", {4: "one_token"}, rejected_by="finds the batch where they meet"),
            Wrong(
                "rounds down",
                {6: "int(work.weight_bytes / machine.bandwidth / gap)"},
                rejected_by="finds the batch where they meet",
            ),
            Wrong(
                "the machine's ridge, in FLOP per byte",
                {6: "math.ceil(machine.flop_rate / machine.bandwidth)"},
                rejected_by="finds the batch where they meet",
            ),
            Wrong("a batch although there is none", {5: "False"}, rejected_by="says None if there is none"),
        ),
        right=(Right("searches", SEARCHES), Right("by arithmetic intensity", INTENSITY)),
    ),
}
