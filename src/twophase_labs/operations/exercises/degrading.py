"""8.9: a front end that degrades before the engine fails."""

from itertools import pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, integer, reject
from twophase_labs.machine.exercise import exercise

LADDER = exercise(
    "8.9", "A ladder up, and down again", "Ladder", points=4, minutes=18, lines=16, difficulty=3, time_limit_s=90
)
LADDER.is_extra = True
LADDER.objective = "degrade a service step by step before it fails, and not longer than needed"
LADDER.hints = (
    "Three cases in each look: pressure, calm, neither. What does the ladder have to remember between looks?",
    "The time of the last rung up (two seconds must pass), and since when it has been calm without a break (None: "
    "it is not calm). A rung down starts the ten seconds anew.",
    "def __init__(self):\n"
    "    self.level, self.raised_s, self.calm_s = 0, ..., None\n\n"
    "def look(self, now_s, kv_usage, queue_age_s):\n"
    "    is_calm = ...\n"
    "    if not is_calm:\n"
    "        self.calm_s = None\n"
    "    elif self.calm_s is None:\n"
    "        self.calm_s = ...\n"
    "    if kv_usage >= ... or ...:\n"
    "        if now_s - self.raised_s >= 2 and ...:\n"
    "            ...\n"
    "    elif is_calm and now_s - self.calm_s >= 10:\n"
    "        self.level, self.calm_s = ..., now_s\n"
    "    return self.level",
)

CALM, BETWEEN = (0.4, 0.0), (0.78, 0.5)  # K/V use, queue age


def levels_of(answer: Any, looks: list[tuple[float, float]], start_s: float = 0.0, ladder: Any = None) -> list[int]:
    """The level after each look, one a second."""
    ladder = answer.Ladder() if ladder is None else ladder
    levels: list[int] = []
    for number, (usage, age_s) in enumerate(looks):
        got = integer(ladder.look(start_s + number, usage, age_s))
        if got is None or not 0 <= got <= 4:
            reject(
                "look returns a level, a whole number from 0 to 4", f"at look {number}: K/V use {usage:g}, {age_s:g} s"
            )
        levels.append(got)
    return levels


@LADDER.check("does nothing without pressure")
def stays_down(answer: Any, draw: Draw) -> None:
    """Below a K/V use of 0.85 and a queue age of 2 s there is no pressure."""
    looks = [(draw.integer(0, 80) / 100, draw.integer(0, 19) / 10) for _ in range(60)]
    levels = levels_of(answer, looks)
    if any(levels):
        at = next(number for number, level in enumerate(levels) if level)
        reject(f"the level is {levels[at]} at a K/V use of {looks[at][0]:g} and a queue age of {looks[at][1]:g} s")


@LADDER.check("keeps ladders apart")
def ladders_are_apart(answer: Any, draw: Draw) -> None:
    """The level belongs to the object, not to the class."""
    one = answer.Ladder()
    levels_of(answer, [(1.0, 9.0)] * 30, ladder=one)
    levels = levels_of(answer, [CALM] * 3)
    if any(levels):
        reject(f"a new Ladder starts at {levels[0]}: another one was at the top before")


@LADDER.check("rises under pressure", usage=(0.9, 0.3, 0.85, 0.3), age_s=(0.0, 5.0, 0.0, 2.0))
def rises(answer: Any, draw: Draw, usage: float, age_s: float) -> None:
    """K/V use of 0.85 or more is pressure, and so is a queue age of 2 s or more; either is enough. Up to level 4 it
    is a rung every five seconds at the latest."""
    levels = levels_of(answer, [CALM] * 3 + [(usage, age_s)] * 26)
    pressed = levels[3:]
    what = f"under a K/V use of {usage:g} and a queue age of {age_s:g} s the levels are {pressed}"
    for rung in (1, 2, 3, 4):
        first = next((number for number, level in enumerate(pressed) if level >= rung), None)
        if first is None or first > 5 * rung:
            reject(f"{what}: rung {rung} should be reached after {5 * rung} s of pressure at the latest")


@LADDER.check("climbs one rung at a time")
def rises_in_order(answer: Any, draw: Draw) -> None:
    """The mild rungs come first: never up by two."""
    for number in range(4):
        looks = [CALM] * number + [(1.0, 20.0)] * 20
        levels = [0, *levels_of(answer, looks)]
        jumps = [b - a for a, b in pairwise(levels)]
        if max(jumps) > 1:
            reject(
                f"the level jumps: {levels[1:]}", "Answers are shortened before prompts, and prompts before refusals."
            )


@LADDER.check("gives each rung time to help")
def gives_a_rung_time(answer: Any, draw: Draw) -> None:
    """After a rung up, at least two seconds pass before the next one."""
    # A rung must be able to help before the next one follows.
    levels = levels_of(answer, [(0.9, 0.0)] * 12)
    for a, b, c in zip(levels, levels[1:], levels[2:], strict=False):
        if a < b < c:
            reject(f"two rungs within two seconds: {levels}", "Between two rungs up lie two seconds at least.")


@LADDER.check("comes down again")
def comes_down(answer: Any, draw: Draw) -> None:
    """One rung down after each 10 s of unbroken calm; then 10 s more."""
    ladder = answer.Ladder()
    top = levels_of(answer, [(1.0, 9.0)] * 30, ladder=ladder)[-1]
    down = levels_of(answer, [CALM] * 80, start_s=30.0, ladder=ladder)
    if down[-1] != 0:
        reject(f"after 80 s of calm the level is {down[-1]}; it came from {top}", "A rung down for each 10 s of calm.")
    if down[8] < top:
        reject(f"after {1 + next(n for n, x in enumerate(down) if x < top)} s of calm the level falls from {top}")
    changes = [number for number, (a, b) in enumerate(pairwise(down)) if a != b]
    if any(a - b > 1 for a, b in pairwise([top, *down])):
        reject(f"it falls by more than one rung at once: {down}")
    if any(b - a < 8 for a, b in pairwise(changes)):
        reject(f"it falls more than a rung in ten seconds: {down}")


@LADDER.check("holds between the two marks")
def holds_between(answer: Any, draw: Draw) -> None:
    """Neither pressure (0.85) nor calm (below 0.70): the level stays."""
    # Between the two marks nothing changes, however long it lasts.
    ladder = answer.Ladder()
    up = levels_of(answer, [(0.9, 0.0)] * 6, ladder=ladder)
    there = levels_of(answer, [BETWEEN] * 60, start_s=6.0, ladder=ladder)
    if set(there) != {up[-1]}:
        reject(
            f"at a K/V use of 0.78 the level goes from {up[-1]} to {min(there)} and {max(there)}",
            "Up from 0.85 on, down below 0.70: in between it holds.",
        )


@LADDER.check("needs a short queue and a free pool to come down")
def calm_means_both(answer: Any, draw: Draw) -> None:
    """Calm: K/V use below 0.70 *and* a queue age below 1 s."""
    ladder = answer.Ladder()
    top = levels_of(answer, [(1.0, 9.0)] * 30, ladder=ladder)[-1]
    for start_s, look in ((30.0, (0.4, 1.5)), (90.0, (0.75, 0.0)), (150.0, (0.70, 0.0)), (210.0, (0.4, 1.0))):
        levels = levels_of(answer, [look] * 60, start_s=start_s, ladder=ladder)
        if levels[-1] != top:
            reject(f"at a K/V use of {look[0]:g} and a queue age of {look[1]:g} s the level falls to {levels[-1]}")


@LADDER.check("counts unbroken calm")
def calm_is_unbroken(answer: Any, draw: Draw) -> None:
    """Whatever is not calm starts the ten seconds anew, pressure or not."""
    # A moment above the mark starts the ten seconds anew.
    ladder = answer.Ladder()
    top = levels_of(answer, [(1.0, 9.0)] * 30, ladder=ladder)[-1]
    for start_s, moment in ((30.0, BETWEEN), (78.0, (0.9, 0.0))):
        looks = ([CALM] * 7 + [moment]) * 6
        levels = levels_of(answer, looks, start_s=start_s, ladder=ladder)
        if min(levels) < top:
            reject(
                f"never calm for more than 7 s, and the level falls to {min(levels)}",
                f"in between there is a look with a K/V use of {moment[0]:g} and a queue age of {moment[1]:g} s",
            )


@LADDER.check("saves the engine in a flood")
def saves_the_engine(answer: Any, draw: Draw) -> None:
    """The whole run, with the engine's scheduler: print `overload(ladder.look).line`."""
    # In the engine: the same flood with and without.
    from twophase_labs.operations.overload import overload

    seed = draw.integer(10, 10_000)
    ladder = answer.Ladder()
    with_it = overload(lambda *look: integer(ladder.look(*look)) or 0, seed=seed)
    without = overload(None, seed=seed)
    if with_it.num_good < 2 * without.num_good:
        reject(
            f"with the ladder {with_it.num_good} of {len(with_it.clients)} requests are within the SLO, without it "
            f"{without.num_good}; at least twice as many should be"
        )
    if with_it.num_preemptions > without.num_preemptions // 4:
        reject(f"{with_it.num_preemptions} preemptions with the ladder, {without.num_preemptions} without")
