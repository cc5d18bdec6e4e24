"""8.2: a tenant's quota."""

from typing import Any

from twophase_labs.machine.checks import Draw, Rejected, compare, number, reject
from twophase_labs.machine.exercise import Exercise, Property

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


def starts_full(answer: Any, draw: Draw) -> None:
    for capacity in (1.0, 4.0):
        follows(answer, 2.0, capacity, [wait(0.0), take(capacity, 0.0), wait(0.0)])


def refills_evenly(answer: Any, draw: Draw, rate_per_s: float) -> None:
    deeds = [take(8.0, 0.0), wait(0.0), wait(0.125), wait(0.25), take(0.25, 0.5), wait(0.5), wait(2.0), wait(9.0)]
    follows(answer, rate_per_s, 8.0, deeds)


def never_overflows(answer: Any, draw: Draw) -> None:
    capacity = float(draw.integer(2, 6))
    follows(answer, 2.0, capacity, [take(1.0, 0.0), wait(50.0), take(capacity, 50.0), wait(50.0), wait(51.0)])
    follows(answer, 2.0, capacity, [wait(50.0), take(capacity, 50.0), wait(50.0)])


def fills_while_nobody_asks(answer: Any, draw: Draw) -> None:
    """`take` brings the level up to date, too: what was taken is taken from what is there then, not at the end."""
    follows(answer, 1.0, 4.0, [take(4.0, 0.0), take(3.0, 8.0), wait(8.0), take(3.0, 8.0), wait(8.0)])
    follows(answer, 1.0, 4.0, [take(2.0, 0.0), take(4.0, 3.0), wait(4.0), wait(4.5)])


def runs_into_debt(answer: Any, draw: Draw) -> None:
    amount = float(draw.integer(10, 30))
    follows(answer, 2.0, 4.0, [take(amount, 0.0), wait(0.0), wait(1.0), take(1.0, 1.0), wait(1.5), wait(40.0)])


def asking_is_free(answer: Any, draw: Draw) -> None:
    follows(answer, 2.0, 4.0, [take(4.0, 0.0), *[wait(0.0)] * 3])


def any_day(answer: Any, draw: Draw, num_deeds: int) -> None:
    now_s, deeds = 0.0, []
    for _ in range(num_deeds):
        now_s += draw.choice([0.0, 0.25, 0.5, 1.0, 3.0])
        deeds.append(take(draw.integer(0, 24) / 4, now_s) if draw.integer(0, 2) else wait(now_s))
    rate_per_s, capacity = draw.choice([0.5, 1.0, 2.0, 4.0]), draw.choice([1.0, 3.0, 8.0])
    follows(answer, rate_per_s, capacity, [*deeds, wait(now_s)])


def buckets_are_apart(answer: Any, draw: Draw) -> None:
    one, other = answer.TokenBucket(1.0, 4.0, 0.0), answer.TokenBucket(1.0, 4.0, 0.0)
    before = number(other.wait_s(0.0))
    one.take(100.0, 0.0)
    after = number(other.wait_s(0.0))
    if before != after:
        reject(f"100 were taken from one bucket, and wait_s(0) of another went from {before} to {after}")


EXERCISES = (
    Exercise(
        id="8.2",
        title="A tenant's allowance",
        kind="code",
        names=("TokenBucket",),
        points=3,
        minutes=5,
        lines=5,
        difficulty=2,
        objective="limit a tenant's rate, allow its bursts, and say how long it has to wait",
        hints=(
            "Nothing happens between two calls: each call first brings the level up to date, from the time that has "
            "passed since the last one.",
            "refill: the time passed times the rate, but no more than `capacity` in all. wait_s: how much is missing "
            "to one, over the rate; no wait is negative.",
            "take: first bring the level up to date, then subtract. It may go below zero.",
        ),
        checks=(
            Property("keeps buckets apart", buckets_are_apart, "Each TokenBucket has a level of its own."),
            Property("starts full", starts_full, "At first there is `capacity`."),
            Property(
                "loses nothing by asking",
                asking_is_free,
                "wait_s takes nothing: asked again in the same moment, it says the same.",
            ),
            Property(
                "refills evenly",
                refills_evenly,
                "`rate_per_s` come back in a second, half of it in half a second; with 0.25 there, 0.75 are missing to "
                "one. No time is counted twice.",
                ({"rate_per_s": 1.0}, {"rate_per_s": 4.0}, {"rate_per_s": 0.5}),
            ),
            Property(
                "runs into debt",
                runs_into_debt,
                "What a request costs is known when it has ended, and may be more than is there: the level goes below "
                "zero, and everything has to be paid back before one is there again.",
            ),
            Property("never holds more than its capacity", never_overflows, "A quiet hour saves nothing up: min()."),
            Property(
                "is brought up to date by take",
                fills_while_nobody_asks,
                "`take` must refill before it subtracts, or the next refill counts the time before it as well.",
            ),
            Property(
                "is right on any day",
                any_day,
                "Bring the level up to date first, in wait_s and in take alike.",
                ({"num_deeds": 6}, {"num_deeds": 25}),
            ),
        ),
        time_limit_s=15,
    ),
)
