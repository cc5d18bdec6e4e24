"""7.7: how many engines, and when."""

import math
from fractions import Fraction
from typing import Any

from twophase_labs.machine.checks import Draw, compare, integer, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number


def best_split() -> int:
    from twophase_labs.many_machines.fleets import best_split

    return best_split()


GUESS_7_12 = exercise("7.12", "How many compute prompts?", kind="prediction", points=1, minutes=4, time_limit_s=120)
GUESS_7_12.objective = "size a prefill pool from a rate"
GUESS_7_12.question = Number(
    best_split,
    rel=0,
    unit="engines",
    hint="How many prompts arrive while one is computed? That many engines are busy with prompts, on average.",
)

SCALING = exercise(
    "7.13", "More engines at once, fewer with patience", "Scaling", points=3, minutes=8, lines=5, difficulty=2
)
SCALING.time_limit_s = 10
SCALING.objective = "decide how many engines there should be, from a load that jumps"
SCALING.hints = (
    "If 4 engines carry 1.5 times their target each, how many carry the target each?",
    "`self.recent` holds pairs (time, number). Drop those older than down_after_s, then add the new one.",
    "Growing happens at once; shrinking goes no further down than the largest recent number, and that never means "
    "growing.",
)

Look = tuple[float, int, float]


def by_the_book(target: float, down_after_s: float, looks: list[Look], tolerance: float) -> list[int]:
    """For each look what is wanted: from the definition, over all looks so far."""
    wanted: list[tuple[float, int]] = []
    found = []
    for now_s, num_engines, load in looks:
        ratio = load / target
        exact = Fraction(load) * num_engines / Fraction(target)
        wish = num_engines if abs(ratio - 1) <= tolerance else max(1, math.ceil(exact))
        wanted.append((now_s, wish))
        recent = [n for time_s, n in wanted if time_s >= now_s - down_after_s]
        found.append(wish if wish >= num_engines else min(num_engines, max(recent)))
    return found


def follows(
    answer: Any, target: float, down_after_s: float, looks: list[Look], tolerance: float = 0.1, named: bool = True
) -> None:
    """Unless `named`, the tolerance is left to the default."""
    scaler = answer.Scaling(target, down_after_s, *([tolerance] if named else []))
    expected = by_the_book(target, down_after_s, looks, tolerance)
    for number, (look, right) in enumerate(zip(looks, expected, strict=True)):
        got = integer(scaler.num_wanted(*look))
        if got is None:
            reject("num_wanted returned no whole number", f"at look {number}: {look}")
        so_far = "; ".join(f"{n} engines at {load:g} at {now_s:g} s" for now_s, n, load in looks[: number + 1])
        settings = f"target {target:g}, down_after_s {down_after_s:g}, tolerance {tolerance:g}; all looks: {so_far}"
        try:
            compare(got, right, what=f"num_wanted at {look[0]:g} s")
        except Exception as error:
            reject(str(error), settings)


@SCALING.check("grows in proportion to the load")
def grows_in_proportion(answer: Any, draw: Draw) -> None:
    """num_engines * load is the whole load; each engine should carry `target` of it."""
    for _ in range(4):
        target = draw.integer(4, 40)
        num_engines = draw.integer(2, 9)
        load = target * draw.choice([2.0, 3.0])
        follows(answer, target, 0.0, [(15.0, num_engines, load)])


@SCALING.check("keeps policies apart")
def policies_are_apart(answer: Any, draw: Draw) -> None:
    """Each Scaling has a memory of its own."""
    answer.Scaling(10.0, 300.0, 0.1).num_wanted(0.0, 9, 30.0)
    follows(answer, 10.0, 300.0, [(15.0, 4, 5.0)])


@SCALING.check("rounds up")
def rounds_up(answer: Any, draw: Draw) -> None:
    """A tenth of an engine too few is an engine too few: math.ceil."""
    # One engine at 1.2 times its target needs two; and 7 at 0.8 need 6.
    follows(answer, 10.0, 0.0, [(15.0, 1, 12.0)])
    follows(answer, 10.0, 0.0, [(15.0, 7, 8.0)])


@SCALING.check("keeps still near the target", tolerance=(0.1, 0.3))
def keeps_still_near_the_target(answer: Any, draw: Draw, tolerance: float) -> None:
    """Nothing changes while load / target is within `tolerance` of 1, above or below."""
    for load in (100 * (1 + tolerance * 0.9), 100 * (1 - tolerance * 0.9), 100.0):
        follows(answer, 100.0, 0.0, [(15.0, 6, load)], tolerance)
    follows(answer, 100.0, 0.0, [(15.0, 6, 100 * (1 + tolerance * 1.5))], tolerance)


@SCALING.check("keeps still on the edge, too")
def keeps_still_on_the_edge(answer: Any, draw: Draw) -> None:
    """Away from 1 by just the tolerance is still within it."""
    # Numbers that binary fractions hold exactly, so that no rounding decides.
    for load in (80.0, 48.0, 80.5, 47.5):
        follows(answer, 64.0, 0.0, [(15.0, 5, load)], 0.25)


@SCALING.check("has a tolerance of 0.1 unless told otherwise")
def has_its_default(answer: Any, draw: Draw) -> None:
    """`Scaling(target, down_after_s, tolerance=0.1)`."""
    for load in (105.0, 95.0, 118.0, 82.0):
        follows(answer, 100.0, 0.0, [(15.0, 20, load)], named=False)


@SCALING.check("keeps at least one engine")
def never_none(answer: Any, draw: Draw) -> None:
    """With no load at all, one engine stays."""
    follows(answer, 10.0, 0.0, [(15.0, draw.integer(2, 6), 0.0), (30.0, 1, 0.0)])


@SCALING.check("shrinks only after a quiet time", down_after_s=(60.0, 0.0, 100.0))
def waits_before_it_shrinks(answer: Any, draw: Draw, down_after_s: float) -> None:
    """Each look of the last down_after_s seconds, this one and one exactly that old included, must have wanted
    fewer."""
    for every_s in (15.0, 4.0):
        looks = [(every_s, 8, 10.0), *[(every_s * i, 8, 5.0) for i in range(2, 32)]]
        follows(answer, 10.0, down_after_s, looks)


@SCALING.check("shrinks to the largest number wanted lately")
def shrinks_to_the_largest_recent(answer: Any, draw: Draw) -> None:
    """The *largest* of the recent numbers, not the latest one, and not the smallest; but never more than there are
    now."""
    follows(answer, 10.0, 30.0, [(0.0, 8, 10.0), (15.0, 8, 7.0), (30.0, 8, 2.0), (45.0, 8, 4.0), (60.0, 8, 2.0)])
    follows(answer, 10.0, 30.0, [(0.0, 8, 10.0), (15.0, 4, 5.0), (30.0, 3, 2.0)])  # some have been stopped meanwhile


@SCALING.check("grows at once")
def grows_at_once(answer: Any, draw: Draw) -> None:
    """Waiting is for shrinking only: a queue does not wait for a quiet time."""
    # Growing never waits, also in the middle of a quiet time.
    follows(answer, 10.0, 300.0, [(0.0, 4, 5.0), (15.0, 4, 5.0), (30.0, 4, 30.0), (45.0, 12, 1.0)])


@SCALING.check("is right on any day", num_looks=(6, 40))
def any_day(answer: Any, draw: Draw, num_looks: int) -> None:
    """Keep the numbers wanted, not the numbers answered."""
    # Looks at any times. Loads in eighths and targets that are powers of two: what is right is no matter of rounding,
    # whichever way it is computed, and no load lies on the edge of the tolerance.
    now_s, looks = 0.0, []
    for _ in range(num_looks):
        now_s += draw.choice([1.0, 7.0, 15.0, 15.0, 40.0])
        looks.append((now_s, draw.integer(1, 12), draw.integer(0, 240) / 8))
    follows(answer, draw.choice([4.0, 8.0, 16.0]), draw.choice([0.0, 30.0, 60.0, 300.0]), looks)
