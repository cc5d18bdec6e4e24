"""8.4: an alert, as Prometheus evaluates it."""

from collections.abc import Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, plain, reject
from twophase_labs.machine.exercise import exercise

ALERT = exercise("8.4", "An alert that waits", "Alert", points=3, minutes=10, lines=7, difficulty=2, time_limit_s=10)
ALERT.objective = "turn a series of samples into an alert that waits, fires, and resolves"
ALERT.hints = (
    "One moment is all there is to remember: since when the condition has been true. It is None while it is not.",
    "Not true: forget the moment. True: note the moment if there is none, and fire if it is at least for_s ago.",
    "def evaluate(self, now_s, value):\n"
    "    is_true = ...   # a missing value is not above anything\n"
    "    if not is_true:\n"
    "        ...\n"
    '        return "inactive"\n'
    "    if self.first_true_s is None:\n"
    "        ...\n"
    '    return "firing" if ... else "pending"',
)

Look = tuple[float, float | None]  # time, value


def by_the_book(threshold: float, for_s: float, looks: Sequence[Look]) -> list[str]:
    """The state at each look, from the definition over all looks so far."""
    is_true = [value is not None and value > threshold for _, value in looks]
    states: list[str] = []
    for i, (now_s, _) in enumerate(looks):
        first = max((j + 1 for j in range(i) if not is_true[j]), default=0)
        has_lasted = is_true[i] and now_s - looks[first][0] >= for_s
        states.append("firing" if has_lasted else "pending" if is_true[i] else "inactive")
    return states


def follows(answer: Any, looks: Sequence[Look], threshold: float = 0.85, for_s: float = 30.0) -> None:
    alert = answer.Alert(threshold, for_s)
    expected = by_the_book(threshold, for_s, looks)
    for number, (look, right) in enumerate(zip(looks, expected, strict=True)):
        got = plain(alert.evaluate(*look))
        if got != right:
            so_far = ", ".join(f"({time_s:g} s, {value})" for time_s, value in looks[: number + 1])
            reject(
                f"at {look[0]:g} s the alert is {got!r}, expected {right!r}",
                f"Alert({threshold:g}, for_s={for_s:g}) saw {so_far}",
            )


def series(values: Sequence[float | None], every_s: float = 15.0, start_s: float = 0.0) -> list[Look]:
    return [(start_s + every_s * i, value) for i, value in enumerate(values)]


@ALERT.check("stays inactive up to its threshold")
def stays_inactive(answer: Any, draw: Draw) -> None:
    """Above means >, not >=."""
    # At the threshold is not above it.
    follows(answer, series([0.0, 0.5, 0.85, 0.85, 0.85, 0.85, 0.2]))
    follows(answer, series([-3.0, 0.0, 2.0, 2.0, 2.0, 2.0]), threshold=2.0)


@ALERT.check("waits for `for_s`", every_s=(15.0, 3.0, 40.0))
def waits(answer: Any, draw: Draw, every_s: float) -> None:
    """True, but not for long enough yet: 'pending'. for_s seconds after the first look at which it was true, it
    fires, and goes on firing while it is true."""
    for for_s in (30.0, 60.0):
        follows(answer, series([0.2, *[0.9] * 22], every_s, start_s=1000.0), for_s=for_s)


@ALERT.check("fires by the clock")
def fires_on_time(answer: Any, draw: Draw) -> None:
    """Seconds count, not looks: scrapes come late, or not at all. At just for_s it fires."""
    # By the clock, not by the number of looks: at just `for_s` it fires.
    follows(answer, [(0.0, 0.9), (29.0, 0.9), (29.5, 0.9), (30.0, 0.9), (31.0, 0.9)])
    follows(answer, [(0.0, 0.9), (1.0, 0.9), (2.0, 0.9), (3.0, 0.9), (4.0, 0.9), (100.0, 0.9)])


@ALERT.check("begins to wait again after a dip")
def begins_again(answer: Any, draw: Draw) -> None:
    """for_s seconds without interruption."""
    # A dip, however short, ends the waiting; it is not added up.
    follows(answer, series([0.9, 0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9]), for_s=45.0)


@ALERT.check("resolves")
def resolves(answer: Any, draw: Draw) -> None:
    """A firing alert is inactive as soon as its condition is not true."""
    follows(answer, series([0.9] * 4 + [0.1, 0.1] + [0.9] * 4))


@ALERT.check("fires at once with for_s=0")
def fires_at_once(answer: Any, draw: Draw) -> None:
    """No waiting: the first true look fires."""
    follows(answer, series([0.2, 0.9, 0.9, 0.2, 0.9]), for_s=0.0)


@ALERT.check("takes a missing sample as not true")
def missing_is_not_true(answer: Any, draw: Draw) -> None:
    """None is neither above nor below anything: Prometheus finds no series, so nothing is true."""
    follows(answer, series([None, 0.9, 0.9, None, 0.9, 0.9, 0.9, None, None]))
    follows(answer, series([None, 0.0, None]), threshold=-1.0, for_s=0.0)  # while 0 is a value as any other


@ALERT.check("waits again once it has resolved")
def waits_again_after(answer: Any, draw: Draw) -> None:
    """After 'inactive' everything begins anew, also the waiting."""
    follows(answer, series([0.9] * 4 + [0.1] * 4 + [0.9] * 4 + [0.1, 0.9, 0.9]))


@ALERT.check("is right for any series", num_looks=(8, 30))
def any_series(answer: Any, draw: Draw, num_looks: int) -> None:
    """Play it through by hand: which moment do you remember, and when do you forget it?"""
    for _ in range(4):
        now_s, value = 0.0, 0.5
        looks: list[Look] = []
        for _ in range(num_looks):
            now_s += draw.choice([5.0, 15.0, 15.0, 60.0])
            if draw.integer(0, 3) == 0:
                value = draw.choice([0.1, 0.85, 0.9, 1.0, None])
            looks.append((now_s, value))
        follows(answer, looks, 0.85, draw.choice([0.0, 15.0, 30.0, 60.0]))


@ALERT.check("keeps alerts apart")
def alerts_are_apart(answer: Any, draw: Draw) -> None:
    """Each Alert has a state of its own."""
    answer.Alert(0.1, 0.0).evaluate(0.0, 0.9)
    follows(answer, series([0.9, 0.9, 0.9]))
    one, other = answer.Alert(0.5, 10.0), answer.Alert(0.5, 10.0)
    one.evaluate(0.0, 0.9)
    for time_s, alert, right in ((10.0, other, "pending"), (10.0, one, "firing"), (15.0, other, "pending")):
        got = plain(alert.evaluate(time_s, 0.9))
        if got != right:
            reject(f"with two alerts evaluated in turn, one is {got!r} at {time_s:g} s, expected {right!r}")
