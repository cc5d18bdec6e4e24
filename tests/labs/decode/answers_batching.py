"""Answers that prove the check of exercise 3.12."""

from twophase_labs.machine.bank import right, wrong

READS, COMPUTES = "reads the weights once, K and V for each", "computes for each sequence"
ADDS, FINDS = "adds up its kernels, each with its own bound", "finds the batch"

BY_INTENSITY = """
def kernel_s(flops, num_bytes, machine):
    if flops * machine.bandwidth > num_bytes * machine.flop_rate:
        return flops / machine.flop_rate
    return num_bytes / machine.bandwidth

def step_seconds(work, machine, batch):
    return kernel_s(batch * work.weight_flops, work.weight_bytes, machine) + kernel_s(
        batch * work.attention_flops, batch * work.kv_bytes, machine)

def ridge_batch(work, machine):
    ridge = machine.flop_rate / machine.bandwidth
    return -int(-(ridge * work.weight_bytes) // work.weight_flops)
"""

# fmt: off
BANKS = {
    "3.12": (
        wrong("weights for each sequence", "max(work.weight_bytes", "max(batch * work.weight_bytes", by=READS),
        wrong("one sequence's K and V only", "batch * max(", "1 * max(", by=READS),
        wrong("one token's products", "batch * work.weight_flops / rate)", "work.weight_flops / rate)", by=COMPUTES),
        wrong("moving and computing one after the other",
              "max(work.kv_bytes / bandwidth, work.attention_flops / rate)",
              "(work.kv_bytes / bandwidth + work.attention_flops / rate)", by=ADDS),
        wrong("the faster", "products = max(", "products = min(", by=READS),
        wrong("K and V in the batch", "math.ceil(work.weight_bytes", "math.ceil((work.weight_bytes + work.kv_bytes)",
              by=FINDS),
        right("kernel by kernel, by intensity", BY_INTENSITY),
        right("the whole batch in the maximum", "batch * max(work.kv_bytes / bandwidth, work.attention_flops",
              "max(batch * work.kv_bytes / bandwidth, batch * work.attention_flops"),
    ),
}
