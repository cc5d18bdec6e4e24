"""3.12 The time of a step, kernel by kernel, and the batch at which its products stop waiting for the weights."""

import math
from typing import Any

from twophase_labs.decode.decode_work import DecodeWork, Machine
from twophase_labs.machine.checks import Draw, compare, integer, reject
from twophase_labs.machine.exercise import exercise

COST = exercise("3.12", "The time of a step", "step_seconds ridge_batch", points=4, minutes=8, lines=4, difficulty=2)
COST.time_limit_s = 10
COST.objective = "bound the time of a step, and find the batch at which its products become compute-bound"
COST.hints = (
    "A step is a sequence of kernels of two kinds, products with weights and attention. Write down bytes and FLOPs of "
    "each kind for B sequences.",
    "Within a kernel moving and computing overlap: the slower of the two is its time. One kernel waits for the one "
    "before it: their times add up.",
    "The products become compute-bound where W / bandwidth = B * weight_flops / rate. Round up. K and V are not in it.",
)

FREE = 1e30  # bytes or operations per second: what takes no time


def case_of(draw: Draw) -> tuple[DecodeWork, Machine]:
    machine = Machine("drawn", bandwidth=draw.integer(10, 4000) * 1e9, flop_rate=draw.integer(50, 900_000) * 1e9)
    weight_bytes = draw.integer(10**8, 10**11)
    work = DecodeWork(weight_bytes, weight_bytes // 2, draw.integer(10**6, 10**9), draw.integer(10**5, 10**9))
    return work, machine


def compare_step(
    answer: Any, work: DecodeWork, machine: Machine, batch: int, products_s: float, attention_s: float, what: str
) -> None:
    got = float(answer.step_seconds(work, machine, batch))
    what = f"the step (s) of {batch} {what}"
    larger_s, all_s = max(products_s, attention_s), products_s + attention_s
    if math.isclose(got, larger_s, rel_tol=1e-5) and not math.isclose(got, all_s, rel_tol=1e-4):
        reject(
            f"{what} is {got:.4g}, and expected {all_s:.4g}",
            f"This is the larger of the products' {products_s:.4g} s and attention's {attention_s:.4g} s. One waits "
            "for the other: their times add up.",
        )
    compare(got, all_s, what=what, rtol=1e-4, atol=0.0)


@COST.check("reads the weights once, K and V for each", batch=(1, 2, 7))
def reads(answer: Any, draw: Draw, batch: int) -> None:
    """What a step moves: the weights, whatever the batch, and the K and V of every sequence."""
    work, machine = case_of(draw)
    fast = Machine("drawn", machine.bandwidth, FREE)
    attention_s = sum(work.kv_bytes for _ in range(batch)) / machine.bandwidth
    compare_step(
        answer, work, fast, batch, work.weight_bytes / machine.bandwidth, attention_s, "with arithmetic for free"
    )


@COST.check("computes for each sequence", batch=(1, 9))
def computes(answer: Any, draw: Draw, batch: int) -> None:
    """`work` has one sequence's FLOPs, in products and in attention; a step has as many tokens as sequences."""
    work, machine = case_of(draw)
    wide = Machine("drawn", FREE, machine.flop_rate)
    products_s = sum(work.weight_flops for _ in range(batch)) / machine.flop_rate
    attention_s = sum(work.attention_flops for _ in range(batch)) / machine.flop_rate
    compare_step(answer, work, wide, batch, products_s, attention_s, "with memory infinitely fast")


@COST.check(
    "adds up its kernels, each with its own bound", batch=(1, 8, 64, 2_000), attention=("memory", "compute") * 2
)
def adds_up(answer: Any, draw: Draw, batch: int, attention: str) -> None:
    """The maximum is taken for the products and for attention, and the two are added: attention's bytes cannot move
    while the next layer's product computes, for that product waits for attention's result."""
    machine = Machine("drawn", bandwidth=1e12, flop_rate=1e14)
    slow, fast = draw.integer(2, 9) * 10**9, draw.integer(2, 9) * 10**7
    kv_bytes, flops = (slow, fast * 100) if attention == "memory" else (fast, slow * 100)
    work = DecodeWork(draw.integer(5, 9) * 10**11, draw.integer(5, 9) * 10**12, kv_bytes, flops)
    products = max(work.weight_bytes / 1e12, batch * work.weight_flops / 1e14)
    attention_s = batch * max(kv_bytes / 1e12, flops / 1e14)
    compare_step(answer, work, machine, batch, products, attention_s, f"whose attention is {attention}-bound")


@COST.check("finds the batch", batch=(1, 48, 1000, 300_000), beyond=(0.0, 0.25, 0.75, 0.0))
def finds_the_batch(answer: Any, draw: Draw, batch: int, beyond: float) -> None:
    """The smallest whole batch whose products compute at least as long as they read: round up, without K and V."""
    # Powers of two, so that nothing is rounded; the two meet `beyond` a whole batch.
    machine = Machine("drawn", bandwidth=2.0**30, flop_rate=2.0**32)
    work = DecodeWork(int((batch + beyond) * 2**30), 2**32, draw.integer(10**6, 10**12), draw.integer(10**6, 10**12))
    returned = answer.ridge_batch(work, machine)
    got = integer(returned)
    if got is None:
        reject(f"the batch is a whole number; got {returned!r}", "`math.ceil` gives the next whole number.")
    what = f"the batch, where the products meet at {batch + beyond:,},"
    compare(got, batch + (beyond > 0), what=what)
