"""8.11: when a canary has been looked at long enough."""

from typing import Any

from twophase_labs.machine.checks import Draw, plain, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.operations.canary_gate import Line

DECIDE = exercise("8.11", "Promote, roll back, wait", "decide", points=4, minutes=12, lines=8, difficulty=2)
DECIDE.objective = "judge a canary by hard bounds first and weighted scores after, from intervals"
DECIDE.hints = (
    "Four outcomes in this order: a hard line surely broken, a hard line open, the mean surely too high, the mean "
    "surely low enough. What is none of these waits.",
    "'Surely broken' looks at `low`, 'surely kept' at `high`; in between too few requests have come.",
    "The mean is sum(weight * used) / sum(weight) with used = loss / bound, kept between 0 and 1: once with every "
    "`low` and once with every `high`. Hard lines are among them.",
)

WORDS = ("promote", "roll back", "wait")


def means(lines: list[Line]) -> tuple[float, float]:
    """What is used up at best and at worst."""
    weight = sum(line.weight for line in lines)
    low, high = (
        sum(line.weight * min(1.0, max(0.0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True))
        / weight
        for losses in ([line.low for line in lines], [line.high for line in lines])
    )
    return low, high


def by_the_rules(lines: list[Line], most_used: float) -> str:
    """From the statement, in its order, with whole lists where the solution may loop."""
    hard = [line for line in lines if line.is_hard]
    if max((line.low / line.bound for line in hard), default=0) > 1:
        return "roll back"
    if max((line.high / line.bound for line in hard), default=0) > 1:
        return "wait"
    low, high = means(lines)
    return "roll back" if low > most_used else "promote" if high <= most_used else "wait"


def decides(answer: Any, lines: list[Line], most_used: float | None = None) -> None:
    expected = by_the_rules(lines, 0.5 if most_used is None else most_used)
    with unchanged(lines=lines):
        got = plain(answer.decide(lines) if most_used is None else answer.decide(lines, most_used))
    if type(got) is not str or got not in WORDS:
        reject(f"decide returned {got!r}, expected one of {', '.join(map(repr, WORDS))}")
    if got != expected:
        told = [f"{one.name}: {one.low:g} to {one.high:g}, bound {one.bound:g}, weight {one.weight:g}"
                + ", hard" * one.is_hard for one in lines]  # fmt: skip
        reject(f"decide says {got!r}, expected {expected!r}", *told)


def line(low: float, high: float, bound: float = 1.0, weight: float = 1.0, hard: bool = False, name: str = "") -> Line:
    return Line(name or ("hard" if hard else "soft"), low, high, bound, weight, hard)


FINE, BAD, OPEN = (0.0, 0.1), (0.9, 1.0), (0.1, 0.9)


@DECIDE.check("promotes what is good")
def promotes_what_is_good(answer: Any, draw: Draw) -> None:
    """All lines are far below their bounds here."""
    decides(answer, [line(*FINE, hard=True), line(*FINE), line(*FINE)])
    decides(answer, [line(*FINE)])


@DECIDE.check("rolls back if a hard line is broken")
def breaks_by_a_hard_line(answer: Any, draw: Draw) -> None:
    """A hard line whose `low` is above its bound decides alone, whatever the other lines say."""
    # However good the others are, and whatever is open.
    decides(answer, [line(1.1, 1.4, weight=0.01, hard=True), line(*FINE, weight=9)])
    decides(answer, [line(*FINE, weight=9), line(0.2, 1.2, hard=True), line(1.1, 1.4, weight=0.01, hard=True)])


@DECIDE.check("waits while a hard line is open")
def waits_for_a_hard_line(answer: Any, draw: Draw) -> None:
    """low <= bound < high: more requests will tell. Nothing is promoted, nor rolled back by its mean, until they
    have."""
    decides(answer, [line(0.0, 1.2, weight=0.01, hard=True), line(*FINE, weight=9)])
    decides(answer, [line(0.2, 1.2, weight=0.01, hard=True), line(*BAD, weight=9)])


@DECIDE.check("weighs its lines")
def weighs(answer: Any, draw: Draw) -> None:
    """Multiply by each line's weight, and divide by the sum of weights."""
    decides(answer, [line(*FINE, weight=8), line(*BAD, weight=1)])
    decides(answer, [line(*FINE, weight=1), line(*BAD, weight=8)])
    decides(answer, [line(*FINE, weight=3), line(*BAD, weight=1)])


@DECIDE.check("lets a soft line break alone")
def hard_is_not_soft(answer: Any, draw: Draw) -> None:
    """Only lines with `is_hard` decide alone; the others count in the mean."""
    # A soft line far beyond its bound is one line of several.
    decides(answer, [line(*FINE, hard=True), line(3.0, 4.0), line(*FINE), line(*FINE)])


@DECIDE.check("counts a line as 1 at most")
def caps_a_line(answer: Any, draw: Draw) -> None:
    """min(1, loss / bound): no line is lost twice."""
    decides(answer, [line(*FINE, weight=2), line(7.0, 9.0)])


@DECIDE.check("takes a gain for no loss")
def no_gain_makes_up(answer: Any, draw: Draw) -> None:
    """max(0, ...): one line's gain does not pay for another's loss. A hard line's gain breaks no bound, and counts
    as 0 in the mean."""
    # What has become better is no loss, and no credit for another line.
    decides(answer, [line(*BAD, weight=2), line(-9.0, -8.0), line(0.0, 0.05, weight=0.5)])
    decides(answer, [line(-9.0, -8.0, weight=4), line(*FINE)])
    decides(answer, [line(-0.4, 0.3, hard=True), line(0.5, 0.7, weight=2), line(-0.5, -0.1, weight=2)])
    for gain in ((-9.0, -8.0), (-3.0, 0.1), (-0.9, 0.2)):  # of a hard line
        decides(answer, [line(*gain, hard=True), line(*FINE)])
        decides(answer, [line(*gain, hard=True), line(0.8, 0.9, weight=9)])


@DECIDE.check("has hard lines in the mean, too")
def counts_hard_lines_too(answer: Any, draw: Draw) -> None:
    """A hard line that is kept has still used some of what may be lost. It counts by its weight, as all do."""
    # A hard line within its bound still uses some of what may be lost.
    decides(answer, [line(0.85, 0.95, weight=3, hard=True), line(*FINE, weight=1)])
    decides(answer, [line(*FINE, weight=3, hard=True), line(*BAD, weight=1)])
    decides(answer, [line(0.8, 0.8, hard=True), line(0.15, 0.15)])  # each by its own weight, no more


@DECIDE.check("waits while the mean is open")
def waits_for_the_mean(answer: Any, draw: Draw) -> None:
    """Two means: with every `low`, and with every `high`. If most_used is between them, wait."""
    decides(answer, [line(*OPEN), line(*OPEN)])
    decides(answer, [line(0.0, 0.6), line(0.0, 0.6)])
    decides(answer, [line(0.4, 1.2), line(0.4, 1.2)])


@DECIDE.check("takes the bounds it is given")
def takes_other_bounds(answer: Any, draw: Draw) -> None:
    """Each line has a unit of its own: divide its loss by its bound. And `most_used` is an argument, which may be 0."""
    decides(answer, [line(0.0, 0.004, bound=0.02), line(0.0, 30.0, bound=100.0)])
    decides(answer, [line(0.018, 0.02, bound=0.02), line(90.0, 99.0, bound=100.0)])
    for most in (0.0, 0.05, 0.95):
        decides(answer, [line(*FINE), line(0.2, 0.3)], most)
        decides(answer, [line(*BAD), line(0.7, 0.8)], most)


@DECIDE.check("lets what is at the bound pass")
def keeps_the_edges(answer: Any, draw: Draw) -> None:
    """Broken is above the bound, kept is at most the bound; the same for the mean and most_used. Round nothing."""
    # Binary fractions: just at the bound is within it, and whatever is above is above, however little.
    decides(answer, [line(1.0, 1.0, weight=0.25, hard=True), line(0.0, 0.0, weight=0.75)])
    decides(answer, [line(0.25, 0.5), line(0.25, 0.5)])
    decides(answer, [line(0.5, 0.75), line(0.5, 0.75)])
    decides(answer, [line(0.25, 0.5002)])
    decides(answer, [line(0.5002, 0.75)])
    decides(answer, [line(0.5, 1.0002, hard=True), line(*FINE, weight=9)])


def some_lines(draw: Draw) -> list[Line]:
    lines = []
    for number in range(draw.integer(1, 6)):
        low = draw.integer(-16, 40) / 32
        lines.append(line(low, low + draw.integer(0, 16) / 32, draw.choice([0.5, 1.0, 2.0]),
                          draw.choice([1.0, 2.0, 6.0]), draw.integer(0, 3) == 0, f"line {number}"))  # fmt: skip
    return lines


@DECIDE.check("judges any canary")
def any_canary(answer: Any, draw: Draw) -> None:
    """Follow the four steps of the statement in their order."""
    # But none whose mean is at most_used: there the order of roundings would decide.
    for most_used in (None, 0.3) * 20:
        lines = some_lines(draw)
        while any(abs(mean - (most_used or 0.5)) < 1e-6 for mean in means(lines)):
            lines = some_lines(draw)
        decides(answer, lines, most_used)
