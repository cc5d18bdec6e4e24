"""8.12: when to stop asking for more."""

from collections.abc import Callable, Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, plain, reject, shown
from twophase_labs.machine.exercise import exercise

WITHIN = exercise(
    "8.12", "Stop when it is good enough", "answer_within", points=4, minutes=13, lines=9, difficulty=2, is_extra=True
)
WITHIN.time_limit_s = 10
WITHIN.objective = "spend tokens in tiers, and stop at the first answer that a verifier accepts"
WITHIN.hints = (
    "Two loops: over the tiers, and over the tries of one tier. Return from the inner one.",
    "Before a try ask whether spent + max_tokens is within the budget; afterwards add what it really took, whether "
    "it is accepted or not.",
    "spent = 0\nfor ask, num_tries, max_tokens in tiers:\n    for _ in range(num_tries):\n"
    "        if ...:\n            break   # the next tier may be cheaper\n        answer, num_tokens = ask()\n"
    "        ...\nreturn None, spent",
)


class Tier:
    """Answers of given lengths, one after the other, and a note of each call."""

    def __init__(self, name: str, lengths: Sequence[int], right_at: int | None, log: list[str]) -> None:
        self.name, self.lengths, self.right_at, self.log = name, lengths, right_at, log
        self.num_calls = 0

    def __call__(self) -> tuple[str, int]:
        at, self.num_calls = self.num_calls, self.num_calls + 1
        answer = f"{self.name}{at}{'!' if at == self.right_at else ''}"
        self.log.append(f"asks {answer}")
        return answer, self.lengths[at % len(self.lengths)]


Plan = tuple[str, Sequence[int], int | None, int, int]  # name, lengths, which is right, tries, most tokens


def played(plans: Sequence[Plan], budget: int) -> tuple[tuple[str | None, int], list[str]]:
    """From the statement: one list of all tries in their order, taken or left one by one."""
    log: list[str] = []
    spent = 0
    tries = [(name, lengths, right_at, most, at)
             for name, lengths, right_at, num, most in plans for at in range(num)]  # fmt: skip
    for name, lengths, right_at, most, at in tries:
        if most > budget - spent:
            continue
        answer = f"{name}{at}{'!' if at == right_at else ''}"
        log += [f"asks {answer}", f"verifies {answer}"]
        spent += lengths[at % len(lengths)]
        if at == right_at:
            return (answer, spent), log
    return (None, spent), log


def plays(answer: Any, plans: Sequence[Plan], budget: int, is_logged: bool = False) -> None:
    log: list[str] = []

    def accepts(text: str) -> bool:
        log.append(f"verifies {text}")
        return text.endswith("!")

    tiers: list[tuple[Callable[[], tuple[str, int]], int, int]] = [
        (Tier(name, lengths, right_at, log), num, most) for name, lengths, right_at, num, most in plans
    ]
    before = list(tiers)
    got = plain(answer.answer_within(tiers, accepts, budget))
    if tiers != before:
        reject(f"answer_within has changed `tiers`, which had {len(before)} and has {len(tiers)} of them afterwards")
    expected, calls = played(plans, budget)
    told = [f"budget {budget}; tiers: " + "; ".join(
        f"{name}: {num} tries of at most {most} tokens" for name, _, _, num, most in plans),
        f"calls: {', '.join(log)}"]  # fmt: skip
    if type(got) is not tuple or len(got) != 2:
        reject(f"answer_within returned {shown(got)}, expected a pair (answer, tokens)", *told)
    if plain(got[0]) != expected[0]:
        reject(f"the answer is {shown(got[0])}, expected {expected[0]!r}", *told)
    if plain(got[1]) != expected[1]:
        reject(f"tokens spent: {shown(got[1])}, expected {expected[1]}", *told)
    if is_logged and log != calls:
        reject("not the calls that it takes", *told, f"expected: {', '.join(calls)}")


def gives(answer: Any, tiers: list[Any], right: Any, spent: int) -> None:
    """`right` is the only answer that is accepted."""

    def accepts(found: Any) -> bool:
        return type(plain(found)) is type(right) and plain(found) == right

    got = plain(answer.answer_within(tiers, accepts, 40))
    if type(got) is not tuple or len(got) != 2 or not accepts(got[0]) or plain(got[1]) != spent:
        reject(f"answer_within returned {shown(got)}, expected ({right!r}, {spent}): {right!r} alone is accepted")


@WITHIN.check("takes the first accepted answer")
def takes_the_first(answer: Any, draw: Draw) -> None:
    """Return (answer, tokens spent), and leave `tiers` as it is."""
    plays(answer, [("a", [3], 0, 1, 4)], 100)
    plays(answer, [("a", [3], 0, 5, 4), ("b", [20], 0, 1, 24)], 100)


@WITHIN.check("tries a tier again")
def tries_again(answer: Any, draw: Draw) -> None:
    """num_tries calls of `ask`, as long as none is accepted; each costs its tokens, also one that says the same
    again."""
    plays(answer, [("a", [3, 2, 4], 2, 4, 4), ("b", [20], 0, 1, 24)], 100)
    plays(answer, [("a", [1], 99, 100, 1)], 1000)
    said = iter("554" + "5" * 9)  # the same again
    gives(answer, [(lambda: (next(said), 3), 3, 4)], "4", 9)


@WITHIN.check("goes on to the next tier")
def escalates(answer: Any, draw: Draw) -> None:
    """Tokens of all tiers count, those of rejected answers too. Of 0 tries none is made."""
    plays(answer, [("a", [3, 2], None, 2, 4), ("b", [20, 11], 1, 2, 24), ("c", [90], 0, 1, 100)], 200)
    plays(answer, [("a", [3], 0, 0, 4), ("b", [9], 0, 1, 20)], 100)  # up to 0 tries are none


@WITHIN.check("gives out nothing that was rejected")
def keeps_no_rejected(answer: Any, draw: Draw) -> None:
    """(None, spent): the caller can refuse or ask a person; a rejected answer looks like any other."""
    plays(answer, [("a", [3], None, 2, 4), ("b", [20], None, 1, 24)], 100)
    plays(answer, [], 100)


@WITHIN.check("takes an accepted answer, whatever it is")
def takes_an_answer_that_is_falsy(answer: Any, draw: Draw) -> None:
    """Ask the verifier and nobody else, about the answer as it came: 0 and an empty text may be right."""
    # 0, an empty text and an empty list are answers like any other, and so is a text with spaces around it.
    falsy_and_odd: tuple[Any, ...] = (0, "", 0.0, [], " 4 ")
    for right in falsy_and_odd:
        gives(answer, [(lambda: (7, 3), 1, 4), (lambda right=right: (right, 2), 2, 4)], right, 5)


@WITHIN.check("stays within the budget")
def stays_within(answer: Any, draw: Draw) -> None:
    """A try may take max_tokens: begin only if they fit."""
    for budget in (0, 3, 4, 7, 8, 9, 11, 12):
        plays(answer, [("a", [4], 2, 3, 4)], budget)


@WITHIN.check("counts what was used")
def counts_what_was_used(answer: Any, draw: Draw) -> None:
    """What a try reserved and did not use can be spent by the next one."""
    # Of 4 tokens reserved, 1 is used: the next try fits.
    plays(answer, [("a", [1], 9, 10, 4)], 14)


@WITHIN.check("goes on where a cheaper tier fits")
def goes_on_to_a_cheaper_one(answer: Any, draw: Draw) -> None:
    """A tier that does not fit any more is left; the one after it may fit."""
    plays(answer, [("a", [4], None, 1, 4), ("b", [20], 0, 1, 24), ("c", [6], 0, 1, 6)], 20)


@WITHIN.check("makes no call too many")
def makes_no_call_too_many(answer: Any, draw: Draw) -> None:
    """One `accepts` for each `ask`, right behind it, and none of either after an accepted answer."""
    plays(answer, [("a", [3, 2], 1, 3, 4), ("b", [20], 0, 1, 24)], 100, is_logged=True)
    plays(answer, [("a", [3], None, 2, 4), ("b", [20], 0, 2, 24)], 40, is_logged=True)


@WITHIN.check("is right for any tiers")
def any_tiers(answer: Any, draw: Draw) -> None:
    """Play the calls below by hand against the statement."""
    for _ in range(30):
        plans: list[Plan] = []
        for name in "abcd"[: draw.integer(1, 5)]:
            most = draw.integer(2, 30)
            lengths = [draw.integer(1, most + 1) for _ in range(4)]
            plans.append((name, lengths, draw.choice([None, None, 0, 1, 2]), draw.integer(1, 4), most))
        plays(answer, plans, draw.integer(0, 90), is_logged=True)
