"""Batching amortises the weights: the time of a step, and the batch at which memory is no longer what one waits for."""

import math
from dataclasses import replace
from typing import Any

from twophase_labs.decode.decode_work import DecodeWork, Machine
from twophase_labs.machine.checks import Draw, compare, integer, reject
from twophase_labs.machine.exercise import exercise

COST = exercise(
    "3.13", "Where the weights stop mattering", "step_seconds ridge_batch", points=4, minutes=9, lines=5, difficulty=2
)
COST.time_limit_s = 10
COST.objective = "find the batch at which decoding leaves the memory-bound side"
COST.hints = (
    "Write the two times of a step of B sequences down: one has a constant in it, the other has not.",
    "They meet where weights / bandwidth + B · kv / bandwidth = B · flops / rate. Solve for B.",
    "Each sequence adds flops / rate - kv / bandwidth to the gap; if that is not above 0, it never closes.",
)

FREE = 1e30  # bytes or operations per second: what takes no time


def case_of(draw: Draw, kv: str = "some") -> tuple[DecodeWork, Machine]:
    """A random model and machine. `kv`: 'none', 'some' (less time than the arithmetic takes), or 'much' (more)."""
    machine = Machine("drawn", bandwidth=draw.integer(10, 4000) * 1e9, flop_rate=draw.integer(50, 900_000) * 1e9)
    ridge = machine.flop_rate / machine.bandwidth
    weight_bytes = draw.integer(10**8, 10**11)
    flops = round(weight_bytes * draw.random.uniform(0.5, 2))
    share = {"none": 0.0, "some": draw.random.uniform(0.1, 0.8), "much": draw.random.uniform(1.2, 9)}[kv]
    return DecodeWork(weight_bytes, int(flops / ridge * share), flops), machine


def seconds_of(work: DecodeWork, machine: Machine, batch: int) -> tuple[float, float]:
    """Of the bytes, and of the arithmetic."""
    moved = work.weight_bytes + sum(work.kv_bytes for _ in range(min(batch, 1))) * batch
    return moved / machine.bandwidth, batch * work.flops / machine.flop_rate


@COST.check("reads the weights for one sequence")
def one_sequence(answer: Any, draw: Draw) -> None:
    """With no K and V and arithmetic for free, a step takes weight_bytes / bandwidth seconds."""
    work, machine = case_of(draw, "none")
    slow = Machine("drawn", machine.bandwidth, machine.flop_rate * 1e6)  # arithmetic takes no time
    got, expected = float(answer.step_seconds(work, slow, 1)), work.weight_bytes / slow.bandwidth
    compare(got, expected, what="the step (s) without K and V", rtol=1e-4, atol=0.0)


@COST.check("reads the weights once, K and V for each", batch=(2, 7))
def reads_weights_once(answer: Any, draw: Draw, batch: int) -> None:
    """What a step moves: the weights, whatever the batch, and the K and V of every sequence."""
    work, machine = case_of(draw)
    fast = Machine("drawn", machine.bandwidth, FREE)
    alone, together = (float(answer.step_seconds(work, fast, n)) for n in (1, batch))
    expected = (batch - 1) * work.kv_bytes / machine.bandwidth
    if not math.isclose(together - alone, expected, rel_tol=1e-3, abs_tol=1e-12):
        reject(
            f"with arithmetic for free, {batch} sequences take {together:.4g} s and one takes {alone:.4g} s",
            f"the difference should be {expected:.4g} s, for reading the K and V of {batch - 1} more sequences",
        )


@COST.check("computes for each sequence", batch=(1, 9))
def computes_for_each(answer: Any, draw: Draw, batch: int) -> None:
    """`work.flops` is one sequence's; a step has as many tokens as sequences."""
    work, machine = case_of(draw)
    wide = Machine("drawn", FREE, machine.flop_rate)
    got, expected = float(answer.step_seconds(work, wide, batch)), batch * work.flops / machine.flop_rate
    if not math.isclose(got, expected, rel_tol=1e-3):
        reject(f"with memory infinitely fast, a step of {batch} takes {got:.4g} s, expected {expected:.4g} s")


@COST.check(
    "waits for the slower of the two",
    *tuple({"batch": batch, "kv": kv} for batch in (1, 30, 3_000) for kv in ("some", "much")),
)
def waits_for_the_slower(answer: Any, draw: Draw, batch: int, kv: str) -> None:
    """Loading and computing overlap: the longer of the two is the time of the step, not their sum."""
    work, machine = case_of(draw, kv)
    moving, computing = seconds_of(work, machine, batch)
    got = float(answer.step_seconds(work, machine, batch))
    if not math.isclose(got, max(moving, computing), rel_tol=1e-3):
        reject(
            f"a step of {batch} takes {got:.4g} s, expected {max(moving, computing):.4g} s",
            f"moving its bytes takes {moving:.4g} s, its arithmetic {computing:.4g} s, and the two overlap",
        )


@COST.check(
    "finds the batch where they meet",
    *tuple({"kv": kv, "beyond": beyond} for kv in ("none", "some") for beyond in (0.25, 0.75)),
)
def crosses_over_there(answer: Any, draw: Draw, kv: str, beyond: float) -> None:
    """The smallest whole batch whose arithmetic takes at least as long as its bytes: round up. If it is far off,
    check the units: weights / bandwidth is in seconds, and so is what a sequence adds."""
    # The two meet that far beyond a whole batch: nearer to it, or to the next.
    work, machine = case_of(draw, kv)
    gap = work.flops / machine.flop_rate - work.kv_bytes / machine.bandwidth
    weight_bytes = round((draw.integer(1, 400) + beyond) * gap * machine.bandwidth)
    work = replace(work, weight_bytes=weight_bytes)
    returned = answer.ridge_batch(work, machine)
    got = integer(returned)
    if got is None:
        reject(f"the batch is a whole number; got {returned!r}", "`math.ceil` gives the next whole number.")
    for batch, should_wait_for_memory in ((got - 1, True), (got, False)):
        moving, computing = seconds_of(work, machine, batch)
        if (moving > computing * (1 + 1e-9)) != should_wait_for_memory and batch >= 1:
            side = "memory" if moving > computing else "arithmetic"
            reject(
                f"you say batch {got}; but at batch {batch} the step waits for {side}",
                f"there its bytes take {moving:.4g} s, its arithmetic {computing:.4g} s",
            )
    if got < 1:
        reject(f"the smallest batch is 1; got {got}")


@COST.check("finds a batch where they meet exactly", batch=(1, 48, 1000, 300_000))
def meets_exactly(answer: Any, draw: Draw, batch: int) -> None:
    """At least as long: if both take the same time, that batch is it. `math.ceil` rounds a whole number to itself."""
    # Powers of two, so that nothing is rounded: arithmetic and bytes take the same time at this batch.
    work, machine = DecodeWork(batch * 2**36, 2**30, 2**37), Machine("drawn", bandwidth=2.0**30, flop_rate=2.0**30)
    got = answer.ridge_batch(replace(work, kv_bytes=2**36), machine)
    what = f"the batch at which both take the same time, exactly {batch},"
    compare(integer(got) if integer(got) is not None else got, batch, what=what)


@COST.check("says None if there is none")
def says_never(answer: Any, draw: Draw) -> None:
    """If reading a sequence's own K and V takes longer than computing its token, no batch helps."""
    work, machine = case_of(draw, "much")
    got = answer.ridge_batch(work, machine)
    if got is not None:
        reject(
            f"there is no such batch, and the answer is {got!r}",
            f"reading one more sequence's K and V takes {work.kv_bytes / machine.bandwidth:.4g} s, "
            f"computing one more token {work.flops / machine.flop_rate:.4g} s",
        )


@COST.check("says None if both grow alike")
def says_never_when_equal(answer: Any, draw: Draw) -> None:
    """A gap that does not get smaller is never closed."""
    work, machine = DecodeWork(2**36, 2**30, 2**30), Machine("drawn", bandwidth=2.0**30, flop_rate=2.0**30)
    try:
        got = answer.ridge_batch(work, machine)
    except ZeroDivisionError:
        reject("it divides by zero", "each sequence adds as much to the arithmetic as to the moving: the gap stays")
    if got is not None:
        reject(f"there is no such batch, and the answer is {got!r}", "each sequence adds as much to both sides")
