"""8.9: which steps to take when a service does not fit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, plain, reject, shown, unchanged
from twophase_labs.machine.exercise import exercise

TRIAGE = exercise("8.9", "What to give up first", "triage", points=3, minutes=7, lines=12, difficulty=2, is_extra=True)
TRIAGE.time_limit_s = 30
TRIAGE.objective = "choose among ways to save memory by bytes won per harm done"
TRIAGE.hints = (
    "What does a step win *now*? missing(taken) - missing([*taken, step]).",
    "Rate each step that is not taken: min(won, still missing) / harm. Take the best, ask again, stop when nothing "
    "is missing or nothing wins anything. Give back at the very end.",
    "taken = []\n"
    "while (short := missing(taken)) > 0:\n"
    "    won = {name: ... for name in harm if name not in taken}\n"
    "    won = {name: w for name, w in won.items() if ...}\n"
    "    if not won:\n"
    "        return None\n"
    "    taken.append(max(won, key=lambda name: ...))\n"
    "for name in list(taken):\n"
    "    without = ...\n"
    "    if ...:\n"
    "        taken = without\n"
    "return taken",
)

Missing = Callable[[Sequence[str]], float]


def by_the_book(harm: Mapping[str, int], missing: Missing) -> list[str] | None:
    """From the definition: at each point all candidates, rated and sorted."""
    taken: list[str] = []
    while missing(taken) > 0:
        rated = []
        for place, name in enumerate(harm):
            if name not in taken:
                won = missing(taken) - missing([*taken, name])
                rated.append((-min(won, missing(taken)) / harm[name], place, name, won))
        rated = [each for each in rated if each[3] > 0]
        if not rated:
            return None
        taken.append(min(rated)[2])
    for name in tuple(taken):
        without = [other for other in taken if other != name]
        if missing(without) <= 0:
            taken = without
    return taken


def decides(answer: Any, harm: Mapping[str, int], missing: Missing, why: str = "") -> None:
    expected = by_the_book(harm, missing)
    given = dict(harm)
    with unchanged(harm=given):
        got = plain(answer.triage(given, missing))
    got = [plain(name) for name in got] if isinstance(got, list | tuple) else got
    if got != expected:
        alone = {name: missing([]) - missing([name]) for name in harm}
        reject(
            f"triage returned {shown(got)}, expected {shown(expected)}",
            f"{missing([]):g} are missing; harm {shown(dict(harm))}; each alone wins {shown(alone)}{why}",
        )


def fixed(short: float, wins: Mapping[str, float]) -> Missing:
    """Steps that win the same whatever else is taken."""

    def missing(names: Sequence[str]) -> float:
        return short - sum(wins[name] for name in set(names))

    return missing


@TRIAGE.check("takes a step that is enough")
def takes_what_fits(answer: Any, draw: Draw) -> None:
    """Of three steps with equal harm, the one that wins all that is missing is the right one."""
    harm = {"first": 2, "second": 2, "third": 2}
    short = draw.integer(40, 60)
    decides(answer, harm, fixed(short, {"first": 10, "second": short + 1, "third": 5}))


@TRIAGE.check("takes nothing where nothing is missing")
def needs_nothing(answer: Any, draw: Draw) -> None:
    """0 or below: it fits already: []."""
    harm = {"first": 1, "second": 3}
    for short in (0, -draw.integer(1, 50)):
        decides(answer, harm, fixed(short, {"first": 10, "second": 20}))


@TRIAGE.check("weighs bytes against harm")
def weighs_harm(answer: Any, draw: Draw) -> None:
    """Bytes won divided by points of harm decide, not the bytes alone, and not the harm alone."""
    # The step that wins most is not the one that wins most per point.
    for _ in range(3):
        unit = draw.integer(5, 30)
        harm = {"large": 9, "medium": 2, "small": 1}
        decides(answer, harm, fixed(7 * unit, {"large": 7 * unit, "medium": 4 * unit, "small": 3 * unit}))
        wins = {"least": 2 * unit, "best": 12 * unit, "next": 7 * unit}
        decides(answer, {"least": 1, "best": 2, "next": 2}, fixed(20 * unit, wins))
    decides(answer, {"worse": 4, "better": 3}, fixed(2, {"worse": 1, "better": 1}), "; a third of a byte, or a quarter")


@TRIAGE.check("does not pay for bytes that are not missing")
def caps_what_counts(answer: Any, draw: Draw) -> None:
    """A step that wins more than is missing counts as winning what is missing."""
    # A step that wins ten times what is missing is worth what is missing.
    short = draw.integer(8, 20)
    decides(answer, {"huge": 8, "right": 2}, fixed(short, {"huge": 10 * short, "right": short}))
    wins = {"huge": 80 * short, "some": short, "rest": short}
    decides(answer, {"huge": 9, "some": 1, "rest": 3}, fixed(2 * short, wins))


@TRIAGE.check("says None when all steps are not enough")
def says_when_nothing_helps(answer: Any, draw: Draw) -> None:
    """If bytes are missing and no step is left that wins any, return None."""
    decides(answer, {"first": 1, "second": 2}, fixed(100, {"first": 10, "second": 20}))
    decides(answer, {"first": 1}, fixed(100, {"first": 0}))
    decides(answer, {}, fixed(1, {}))


@TRIAGE.check("takes no step that wins nothing")
def takes_no_step_that_wins_nothing(answer: Any, draw: Draw) -> None:
    """A step whose win is 0 or below stays out."""

    def missing(names: Sequence[str]) -> float:
        return 10 - 4 * ("good" in names) + 3 * ("bad" in names) - 7 * ("better" in names)

    decides(answer, {"nothing": 1, "bad": 1, "good": 2, "better": 9}, missing)

    def together(names: Sequence[str]) -> float:
        return 10 - 20 * ("one" in names and "other" in names)

    decides(answer, {"one": 1, "other": 1}, together, "; neither wins anything alone, so neither is taken")
    decides(answer, {"one": 1, "other": 2}, fixed(2, {"one": 1, "other": 1}), "; a byte is a byte")


@TRIAGE.check("takes the first of equals")
def takes_the_first_of_equals(answer: Any, draw: Draw) -> None:
    """The order of `harm` decides between equals: max over the names in that order does so by itself."""
    decides(answer, {"zeta": 2, "alpha": 2, "beta": 4}, fixed(10, {"zeta": 10, "alpha": 10, "beta": 20}))


@TRIAGE.check("asks again after each step")
def looks_again(answer: Any, draw: Draw) -> None:
    """Half the tokens win half as much once each token has half the bytes. Compute what each step wins after every
    step taken, not once at the start."""
    # Fewer tokens, and fewer bytes for each: together they win less than the sum.
    bytes_each = draw.integer(3, 9)

    def missing(names: Sequence[str]) -> float:
        tokens = 100 * (0.4 if "fewer tokens" in names else 1) * (0.5 if "half at a time" in names else 1)
        per_token = bytes_each / (2 if "fewer bytes" in names else 1)
        return tokens * per_token - 25 * bytes_each - (0.15 * 100 * bytes_each if "other" in names else 0)

    harm = {"fewer tokens": 2, "half at a time": 4, "fewer bytes": 2, "other": 1}
    decides(answer, harm, missing, "; what a step wins depends on the steps before it")
    decides(answer, harm | {"other": 3, "fewer bytes": 1}, missing, "; what a step wins depends on the steps before it")

    def shrinking(names: Sequence[str]) -> float:
        product = 100 * (0.3 if "tokens" in names else 1) * (0.5 if "bytes" in names else 1)
        return bytes_each * (product - 8 - 9 * ("fixed" in names))

    decides(answer, {"tokens": 2, "bytes": 2, "fixed": 1}, shrinking, "; after one step the others win something else")


@TRIAGE.check("gives back what is no longer needed")
def gives_back(answer: Any, draw: Draw) -> None:
    """At the end, in the order taken: is everything still fine without this step? Then drop it."""
    # A small step comes first because it is cheap, and a large one makes it unnecessary.
    tenth = draw.integer(5, 9)
    large = {"small": 1, "large": 5}
    decides(answer, large, fixed(10 * tenth, {"small": 3 * tenth, "large": 11 * tenth}))
    decides(answer, large, fixed(10 * tenth, {"small": 3 * tenth, "large": 10 * tenth}))
    decides(answer, large, fixed(10 * tenth, {"small": 3 * tenth, "large": 10 * tenth - 1}))
    both = {"small": 3 * tenth, "tiny": 3 * tenth, "large": 11 * tenth}
    decides(answer, {"small": 1, "tiny": 1, "large": 5}, fixed(10 * tenth, both))
    either = {"first": 3 * tenth, "second": 3 * tenth, "large": 7.5 * tenth}
    decides(answer, {"first": 1, "second": 1, "large": 5}, fixed(10 * tenth, either))


@TRIAGE.check("is right for any service", num_steps=(2, 4, 7))
def any_service(answer: Any, draw: Draw, num_steps: int) -> None:
    """Compare with the definition, step by step, on a service of two or three steps."""
    for _ in range(8):
        names = [f"step {number}" for number in range(num_steps)]
        harm = {name: draw.integer(1, 10) for name in names}
        factor = {name: 1 - draw.integer(1, 14) / 16 for name in names}
        plus = {name: draw.integer(0, 40) for name in names}
        room = draw.integer(10, 120)

        def missing(
            taken: Sequence[str], factor: dict[str, float] = factor, plus: dict[str, int] = plus, room: int = room
        ) -> float:
            product = 256.0
            for name in sorted(set(taken)):
                product *= factor[name]
            return product - room - sum(plus[name] for name in set(taken))

        decides(answer, harm, missing)


@TRIAGE.check("is right for this section's service")
def of_the_planner(answer: Any, draw: Draw) -> None:
    """Print missing() after each step."""
    # The service of this section, and its least harm over all sets of steps.
    from twophase_labs.operations import triage

    decides(answer, triage.HARM, triage.missing)
