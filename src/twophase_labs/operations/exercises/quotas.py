"""8.2: a tenant's quota."""

from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, number, reject
from twophase_labs.machine.exercise import exercise

BUCKET = exercise(
    "8.2", "A tenant's allowance", "TokenBucket", points=3, minutes=7, lines=5, difficulty=2, time_limit_s=15
)
BUCKET.objective = "limit a tenant's rate, allow its bursts, and say how long it has to wait"
BUCKET.hints = (
    "Nothing happens between two calls: each call first brings the level up to date, from the time that has passed "
    "since the last one.",
    "refill: the time passed times the rate, but no more than `capacity` in all. wait_s: how much is missing to "
    "one, over the rate; no wait is negative.",
    "take: first bring the level up to date, then subtract. It may go below zero.",
)


@BUCKET.check("keeps buckets apart")
def buckets_are_apart(answer: Any, draw: Draw) -> None:
    """Each TokenBucket has a level of its own."""
    one, other = answer.TokenBucket(1.0, 4.0, 0.0), answer.TokenBucket(1.0, 4.0, 0.0)
    before = number(other.wait_s(0.0))
    one.take(100.0, 0.0)
    after = number(other.wait_s(0.0))
    if before != after:
        reject(f"100 were taken from one bucket, and wait_s(0) of another went from {before} to {after}")


Deed = tuple[str, float, float]  # ("wait", 0, when) or ("take", amount, when)


def by_small_steps(rate_per_s: float, capacity: float, start_s: float, deeds: list[Deed], tick_s: float) -> list[float]:
    """What each `wait` should say: the level filled up tick by tick. All numbers are multiples of powers of two."""
    level, now_s, found = capacity, start_s, []
    for what, amount, when_s in deeds:
        while now_s < when_s:
            now_s += tick_s
            level = min(capacity, level + rate_per_s * tick_s)
        if what == "take":
            level -= amount
        else:
            late, then = 0.0, level
            while then < 1:
                late, then = late + tick_s, then + rate_per_s * tick_s
            found.append(late)
    return found


def follows(
    answer: Any, rate_per_s: float, capacity: float, deeds: list[Deed], start_s: float = 0.0, tick_s: float = 1 / 64
) -> None:
    """Only for numbers whose waits are multiples of the tick."""
    bucket = answer.TokenBucket(rate_per_s, capacity, start_s)
    expected = iter(by_small_steps(rate_per_s, capacity, start_s, deeds, tick_s))
    done = f"TokenBucket({rate_per_s:g}, {capacity:g}, now_s={start_s:g})"
    for what, amount, when_s in deeds:
        if what == "take":
            bucket.take(amount, when_s)
            done += f"; take({amount:g}, {when_s:g})"
            continue
        got = number(bucket.wait_s(when_s))
        if got is None:
            reject(f"wait_s({when_s:g}) returned no number", f"after {done}")
        try:
            compare(got, next(expected), what=f"wait_s({when_s:g})", atol=1e-9)
        except Rejected as error:
            reject(str(error), *error.details, f"after {done}")
        done += f"; wait_s({when_s:g})"


def wait(when_s: float) -> Deed:
    return "wait", 0.0, when_s


def take(amount: float, when_s: float) -> Deed:
    return "take", amount, when_s


@BUCKET.check("starts full")
def starts_full(answer: Any, draw: Draw) -> None:
    """At first there is `capacity`."""
    for capacity in (1.0, 4.0):
        follows(answer, 2.0, capacity, [wait(0.0), take(capacity, 0.0), wait(0.0)])


@BUCKET.check("loses nothing by asking")
def asking_is_free(answer: Any, draw: Draw) -> None:
    """wait_s takes nothing: asked again in the same moment, it says the same."""
    follows(answer, 2.0, 4.0, [take(4.0, 0.0), *[wait(0.0)] * 3])


@BUCKET.check("refills evenly", rate_per_s=(1.0, 4.0, 0.5))
def refills_evenly(answer: Any, draw: Draw, rate_per_s: float) -> None:
    """`rate_per_s` come back in a second, half of it in half a second; with 0.25 there, 0.75 are missing to one. No
    time is counted twice."""
    deeds = [take(8.0, 0.0), wait(0.0), wait(0.125), wait(0.25), take(0.25, 0.5), wait(0.5), wait(2.0), wait(9.0)]
    follows(answer, rate_per_s, 8.0, deeds)
    follows(answer, 16.0, 8.0, [take(7.25, 0.0), wait(0.0)])  # 1/64 s, which whole milliseconds are not


@BUCKET.check("runs into debt")
def runs_into_debt(answer: Any, draw: Draw) -> None:
    """What a request costs is known when it has ended, and may be more than is there: the level goes below zero,
    and everything has to be paid back before one is there again."""
    amount = float(draw.integer(10, 30))
    follows(answer, 2.0, 4.0, [take(amount, 0.0), wait(0.0), wait(1.0), take(1.0, 1.0), wait(1.5), wait(40.0)])
    follows(answer, 1.0, 4.0, [take(204.0, 0.0), wait(100.0)])  # no debt is forgiven, however long ago


@BUCKET.check("never holds more than its capacity")
def never_overflows(answer: Any, draw: Draw) -> None:
    """A quiet hour saves nothing up: min()."""
    capacity = float(draw.integer(2, 6))
    follows(answer, 2.0, capacity, [take(1.0, 0.0), wait(50.0), take(capacity, 50.0), wait(50.0), wait(51.0)])
    follows(answer, 2.0, capacity, [wait(50.0), take(capacity, 50.0), wait(50.0)])


@BUCKET.check("is brought up to date by take")
def fills_while_nobody_asks(answer: Any, draw: Draw) -> None:
    """`take` must refill before it subtracts, or the next refill counts the time before it as well."""
    # `take` brings the level up to date, too: what was taken is taken from what is there then, not at the end.
    follows(answer, 1.0, 4.0, [take(4.0, 0.0), take(3.0, 8.0), wait(8.0), take(3.0, 8.0), wait(8.0)])
    follows(answer, 1.0, 4.0, [take(2.0, 0.0), take(4.0, 3.0), wait(4.0), wait(4.5)])


@BUCKET.check("is right on any day", num_deeds=(6, 25))
def any_day(answer: Any, draw: Draw, num_deeds: int) -> None:
    """Bring the level up to date first, in wait_s and in take alike."""
    now_s, deeds = 0.0, []
    for _ in range(num_deeds):
        now_s += draw.choice([0.0, 0.25, 0.5, 1.0, 3.0])
        deeds.append(take(draw.integer(0, 24) / 4, now_s) if draw.integer(0, 2) else wait(now_s))
    rate_per_s, capacity = draw.choice([0.5, 1.0, 2.0, 4.0]), draw.choice([1.0, 3.0, 8.0])
    follows(answer, rate_per_s, capacity, [*deeds, wait(now_s)])
