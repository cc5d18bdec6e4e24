"""Answers that prove the check of exercise 8.10."""

from twophase_labs.machine.bank import right, wrong

SUM, EQUAL, WEIGHTS = "adds up to the step", "lets equal chunks pay alike", "shares the weights by chunks"
ARITHMETIC, KEYS = "counts each chunk's own arithmetic", "counts the keys that each query meets"
MEMORY, ANY, INPUT = "counts K and V read and written", "is right for any step", "leaves its chunks alone"

TAKES_THE_CHUNKS_OFF = """
def share_step(chunks, step_s, machine):
    alone = []
    number = len(chunks)
    while chunks:
        start, count = chunks.pop(0)
        keys = start * count + count * (count + 1) // 2
        flops = machine.flops_per_token * count + machine.flops_per_key * keys
        moved = machine.weight_bytes / number + machine.kv_bytes_per_token * (start + 2 * count)
        alone.append(flops / machine.flops_per_s + moved / machine.bytes_per_s)
    total = sum(alone)
    return [step_s * seconds / total for seconds in alone]
"""
WITH_NUMPY = """
import numpy as np

def share_step(chunks, step_s, machine):
    starts, counts = np.array(chunks, dtype=np.float64).T
    keys = counts * (2 * starts + counts + 1) / 2
    seconds = (counts * machine.flops_per_token + keys * machine.flops_per_key) / machine.flops_per_s
    seconds += (starts + 2 * counts) * machine.kv_bytes_per_token / machine.bytes_per_s
    seconds += machine.weight_bytes / machine.bytes_per_s / len(chunks)
    return (step_s * seconds / seconds.sum()).tolist()
"""
BY_PARTS = """
def share_step(chunks, step_s, machine):
    def own(chunk):
        start, count = chunk
        keys = sum(range(start + 1, start + count + 1))
        arithmetic_s = (count * machine.flops_per_token + keys * machine.flops_per_key) / machine.flops_per_s
        return arithmetic_s + (start + count + count) * machine.kv_bytes_per_token / machine.bytes_per_s

    common_s = machine.weight_bytes / machine.bytes_per_s
    whole_s = common_s + sum(map(own, chunks))
    return [step_s / whole_s * (own(chunk) + common_s / len(chunks)) for chunk in chunks]
"""

# fmt: off
BANKS = {
    "8.10": (
        wrong("scaled to the largest", "sum(alone)", "max(alone)", by=SUM),
        wrong("the first of equals pays the rest", "return [step_s * seconds / total for seconds in alone]",
              "alone[0] += 0.01 * total\n    total = sum(alone)\n    return [step_s * seconds / total for seconds in alone]",
              by=EQUAL),
        wrong("weights for decodes alone", ".weight_bytes / len(chunks", ".weight_bytes * (count == 1", by=WEIGHTS),
        wrong("no arithmetic of the weights", "machine.flops_per_token * count", "1e-30", by=ARITHMETIC),
        wrong("the new tokens meet only old keys", "count * (count + 1) // 2", "1e-30", by=KEYS),
        wrong("what is written is free", "2 * count", "count", by=MEMORY),
        wrong("each chunk reads all the weights", ".weight_bytes / len(chunks)", ".weight_bytes", by=ANY),
        wrong("takes the chunks off the list", TAKES_THE_CHUNKS_OFF, by=INPUT),
        right("with NumPy", WITH_NUMPY),
        right("its own part and the common one", BY_PARTS),
    ),
}
