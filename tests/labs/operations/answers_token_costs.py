"""Answers that prove the check of exercise 8.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SUM, ALONE, EQUAL, WEIGHTS, ARITHMETIC, KEYS, MEMORY, ANY, INPUT = (
    "adds up to the step",
    "lets a single chunk pay all",
    "lets equal chunks pay alike",
    "shares the weights by chunks",
    "counts each chunk's own arithmetic",
    "counts the keys that each query meets",
    "counts K and V read and written",
    "is right for any step",
    "leaves its chunks alone",
)
SOLUTION = """
def share_step(chunks, step_s, machine):
    alone = []
    for start, count in chunks:
        keys = start * count + count * (count + 1) // 2
        flops = machine.flops_per_token * count + machine.flops_per_key * keys
        moved = machine.weight_bytes / len(chunks) + machine.kv_bytes_per_token * (start + 2 * count)
        alone.append(flops / machine.flops_per_s + moved / machine.bytes_per_s)
    total = sum(alone)
    return [step_s * seconds / total for seconds in alone]
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = SOLUTION
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


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

BANKS = {
    "8.11": Bank(
        wrong=(
            Wrong("not scaled", edited(("step_s * seconds / total", "seconds")), SUM),
            Wrong("scaled to the largest", edited(("sum(alone)", "max(alone)")), SUM),
            Wrong(
                "in equal parts",
                "def share_step(chunks, step_s, machine):\n    return [step_s / len(chunks) for _ in chunks]\n",
                ARITHMETIC,
            ),
            Wrong(
                "by the number of tokens",
                "def share_step(chunks, step_s, machine):\n    total = sum(count for _, count in chunks)\n"
                "    return [step_s * count / total for _, count in chunks]\n",
                WEIGHTS,
            ),
            Wrong(
                "the first of equals pays the rest",
                edited(("    return [", "    alone[0] += 0.01 * total\n    total = sum(alone)\n    return [")),
                EQUAL,
            ),
            Wrong(
                "weights by tokens",
                edited(
                    ("machine.weight_bytes / len(chunks)", "machine.weight_bytes * count / sum(c for _, c in chunks)")
                ),
                WEIGHTS,
            ),
            Wrong(
                "weights for decodes alone",
                edited(("machine.weight_bytes / len(chunks)", "machine.weight_bytes * (count == 1)")),
                WEIGHTS,
            ),
            Wrong("arithmetic per chunk", edited(("flops_per_token * count", "flops_per_token")), ARITHMETIC),
            Wrong(
                "no arithmetic of the weights", edited(("machine.flops_per_token * count + ", "1e-30 + ")), ARITHMETIC
            ),
            Wrong(
                "every query meets every key",
                edited(("start * count + count * (count + 1) // 2", "(start + count) * count")),
                KEYS,
            ),
            Wrong("the new tokens meet only old keys", edited((" + count * (count + 1) // 2", " + 1e-30")), KEYS),
            Wrong("a token does not meet itself", edited(("count * (count + 1)", "count * (count - 1)")), KEYS),
            Wrong("what is written is free", edited(("(start + 2 * count)", "(start + count)")), MEMORY),
            Wrong(
                "the whole context is read per query",
                edited(("(start + 2 * count)", "(start * count + 2 * count)")),
                MEMORY,
            ),
            Wrong(
                "bytes and FLOPs added up",
                edited(("flops / machine.flops_per_s + moved / machine.bytes_per_s", "flops + moved")),
                ANY,
            ),
            Wrong(
                "the longer of the two",
                edited(
                    (
                        "flops / machine.flops_per_s + moved / machine.bytes_per_s",
                        "max(flops / machine.flops_per_s, moved / machine.bytes_per_s)",
                    )
                ),
                ANY,
            ),
            Wrong(
                "each chunk reads all the weights",
                edited(("machine.weight_bytes / len(chunks)", "machine.weight_bytes")),
                ANY,
            ),
            Wrong(
                "takes the chunks off the list",
                edited(
                    (
                        "    for start, count in chunks:",
                        "    number = len(chunks)\n    while chunks:\n        start, count = chunks.pop(0)",
                    ),
                    ("len(chunks) +", "number +"),
                ),
                INPUT,
            ),
        ),
        right=(Right("with NumPy", WITH_NUMPY), Right("its own part and the common one", BY_PARTS)),
    ),
}
