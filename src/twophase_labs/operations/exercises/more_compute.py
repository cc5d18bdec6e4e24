"""8.16, 8.17 and 8.18: when to stop asking for more, and what several completions are worth."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb
from typing import Any

from twophase_labs.machine.checks import Draw, compare, number, plain, raises, reject, shown, unchanged
from twophase_labs.machine.exercise import exercise

PASS = exercise(
    "8.17", "One of k", "pass_at_k", points=2, minutes=4, lines=6, difficulty=1, is_extra=True, time_limit_s=10
)
PASS.objective = "estimate without bias how often k completions contain a right one"
PASS.hints = (
    "Draw k of the num completions without putting one back. What is the probability that all of them are wrong?",
    "The first is wrong with (num - num_right) / num, the second, given that, with (num - num_right - 1) / (num - "
    "1), and so on: a product of k factors. Factorials of large numbers leave a float's range; the factors do not.",
    "if ...:\n    raise ValueError(...)\nall_wrong = 1.0\nfor i in range(k):\n    all_wrong *= ...\n"
    "return ...   # what if there are fewer than k wrong ones?",
)


def exact(num: int, num_right: int, k: int) -> float:
    """By counting subsets, in whole numbers; as a fraction, whose division rounds once."""
    return float(1 - Fraction(comb(num - num_right, k), comb(num, k)))


def estimates(answer: Any, num: int, num_right: int, k: int) -> None:
    got = number(answer.pass_at_k(num, num_right, k))
    if got is None:
        reject("pass_at_k returned no number")
    expected = exact(num, num_right, k)
    compare(float(got), expected, what=f"pass_at_k({num:,}, {num_right:,}, {k:,})", rtol=1e-6, atol=1e-9)


@PASS.check("is a plain share for one completion")
def one_completion(answer: Any, draw: Draw) -> None:
    """For k = 1 it is num_right / num."""
    for _ in range(5):
        num = draw.integer(2, 40)
        estimates(answer, num, draw.integer(0, num + 1), 1)
    estimates(answer, 8, 7, 1)


@PASS.check("is 0 where none is right")
def none_right(answer: Any, draw: Draw) -> None:
    """All factors are 1 then."""
    for k in (1, 3, 8):
        estimates(answer, 8, 0, k)


@PASS.check("is 1 where all are right")
def all_right(answer: Any, draw: Draw) -> None:
    """The first factor is 0; what follows must not undo it."""
    for k in (1, 3, 8):
        estimates(answer, 8, 8, k)


@PASS.check("is 1 where fewer than k are wrong")
def fewer_wrong_than_k(answer: Any, draw: Draw) -> None:
    """A factor becomes 0 there, and later ones are negative: stop at the first 0, or see that the product stays 0."""
    # However 4 are drawn, one of the right ones is among them.
    for num_right in (5, 6, 7):
        estimates(answer, 8, num_right, 4)
    estimates(answer, 8, 1, 8)


@PASS.check("puts nothing back")
def without_putting_back(answer: Any, draw: Draw) -> None:
    """1 - (1 - p)**k puts each completion back before the next is drawn, and says too little."""
    for num, num_right, k in ((4, 1, 2), (8, 1, 4), (10, 3, 5)):
        estimates(answer, num, num_right, k)


@PASS.check("is right for any counts")
def any_counts(answer: Any, draw: Draw) -> None:
    """Check the numerator and the denominator at i = k - 1."""
    for num, num_right, k in ((8, 4, 4), (10, 6, 4), (9, 7, 2)):  # just k wrong ones: they may be what is drawn
        estimates(answer, num, num_right, k)
    for _ in range(20):
        num = draw.integer(1, 60)
        estimates(answer, num, draw.integer(0, num + 1), draw.integer(1, num + 1))


@PASS.check("works for thousands of completions")
def many(answer: Any, draw: Draw) -> None:
    """Factorials and powers leave a float's range; a product of factors between 0 and 1 does not."""
    for num, num_right, k in ((20_000, 3, 9_000), (5_000, 1, 2_500), (3_000, 400, 2)):
        estimates(answer, num, num_right, k)


@PASS.check("refuses k below 1 or above num")
def refuses_more_than_there_are(answer: Any, draw: Draw) -> None:
    """Eight completions say nothing about the best of nine: raise ValueError, before anything else."""
    # Whatever num_right is, and of no completions at all.
    for num, k in ((4, 5), (4, 0), (4, -1), (1, 2), (0, 1), (0, 0)):
        for num_right in {0, num // 2, num}:
            raises(ValueError, answer.pass_at_k, num, num_right, k)


WITHIN = exercise(
    "8.16", "Stop when it is good enough", "answer_within", points=4, minutes=8, lines=9, difficulty=2, time_limit_s=10
)
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


VOTE = exercise("8.18", "A vote", "vote", points=2, minutes=5, lines=6, difficulty=1, is_extra=True, time_limit_s=10)
VOTE.objective = "choose among completions by what most of them say"
VOTE.hints = (
    "Count only answers that could be read. What decides between two answers with as many votes each?",
    "For each distinct answer a pair (votes, best score of its completions); the largest pair wins, and pairs "
    "compare in this order.",
    "best = {}\nfor answer, score in zip(answers, scores, strict=True):\n    ...   # unread ones do not vote\n"
    "return max(..., key=lambda answer: (votes of it, best score of it), default=None)",
)


def counted(answers: Sequence[Any], scores: Sequence[float]) -> Any:
    """The largest of (votes, best score) over the distinct answers, from the definition."""
    read = {a for a in answers if a is not None}
    if not read:
        return None
    return max(
        read, key=lambda a: (list(answers).count(a), max(s for b, s in zip(answers, scores, strict=True) if b == a))
    )


def votes(answer: Any, answers: Sequence[Any], scores: Sequence[float]) -> None:
    with unchanged(answers=answers, scores=scores):
        got = plain(answer.vote(answers, scores))
    expected = counted(answers, scores)
    if type(got) is not type(expected) or got != expected:
        reject(f"vote says {shown(got)}, expected {expected!r}", f"answers {answers}", f"scores {scores}")


@VOTE.check("takes the most frequent")
def takes_the_most_frequent(answer: Any, draw: Draw) -> None:
    """collections.Counter counts, and scores do not matter where one answer has more votes."""
    votes(answer, [12, 15, 12], [-1.0, -0.5, -2.0])
    votes(answer, ["a", "b", "b", "b", "a"], [-1.0, -2.0, -3.0, -4.0, -5.0])
    votes(answer, [4, 4, 7], [-1.0, -2.0, -1.0])  # two completions may be as likely as each other
    votes(answer, [7, 4, 4], [-1.0, -1.0, -2.0])
    for low in (-120.0, -5000.0):  # however unlikely
        votes(answer, [4, 4, 7], [low, low - 10, -0.5])
    large = [int(text) for text in ("5", "1000", "1000")]  # equal, and objects of their own
    votes(answer, large, [-0.1, -1.0, -2.0])
    votes(answer, [-3, 5, -3], [-1.0, -0.1, -2.0])


@VOTE.check("lets no unreadable one vote")
def passes_over_unreadable(answer: Any, draw: Draw) -> None:
    """None is a completion in which no answer was found. Drop these first."""
    votes(answer, [None, None, 4, None], [-1.0, -0.2, -3.0, -1.0])
    votes(answer, [None, 4, None, 5, 5], [-1.0, -0.2, -3.0, -1.0, -4.0])
    votes(answer, [None, 7, 4], [-2.0, -0.5, -1.0])


@VOTE.check("counts 0 as an answer")
def zero_is_an_answer(answer: Any, draw: Draw) -> None:
    """Ask `is not None`: 0 and '' are false, and answers."""
    votes(answer, [0, 0, 3], [-1.0, -2.0, -0.5])
    votes(answer, ["", "", "a"], [-1.0, -2.0, -0.5])


@VOTE.check("decides ties by the score")
def ties_by_score(answer: Any, draw: Draw) -> None:
    """Among equals, the one with the best score, which may be 0 or far below. Compare scores as they are."""
    votes(answer, [4, 7, 7, 4], [-1.0, -0.9, -0.4, -2.0])
    votes(answer, [4, 7, 7, 4], [-0.3, -3.0, -0.4, -2.0])
    votes(answer, [9, 1, 5], [-2.0, -1.0, -3.0])
    votes(answer, [9, 1, 5, 3, 8], [-2.0, -3.0, -2.5, -4.0, -1.0])
    votes(answer, [4, 4, 7, 7], [0.0, -1.5, -1.0, -2.0])  # a probability of 1
    for best, next_best in ((-4000.0, -5000.0), (-40.0, -50.0), (-0.5001, -0.5002)):
        votes(answer, [4, 7], [next_best, best])
        votes(answer, [4, 7], [best, next_best])


@VOTE.check("compares best scores, not sums")
def best_not_sum(answer: Any, draw: Draw) -> None:
    """The best score of an answer's completions."""
    # One of -0.1 and -9 against two of -1: the best one counts in a tie, not the sum, nor that of probabilities.
    votes(answer, [4, 4, 7, 7], [-0.1, -9.0, -1.0, -1.0])
    votes(answer, [4, 4, 7, 7], [-0.4, -9.0, -0.5, -0.6])
    votes(answer, [7, 7, 4, 4], [-0.5, -0.6, -0.4, -9.0])


@VOTE.check("says None where nothing was read")
def says_none(answer: Any, draw: Draw) -> None:
    """max(..., default=None)."""
    votes(answer, [None, None], [-1.0, -2.0])
    votes(answer, [], [])


@VOTE.check("is right for any votes")
def any_votes(answer: Any, draw: Draw) -> None:
    """Votes first, then the best score."""
    for _ in range(40):
        size = draw.integer(1, 12)
        answers = [draw.choice([None, 0, 1, 2, 3]) for _ in range(size)]
        scores = [-float(score) / 8 - 0.01 for score in draw.permutation(size).tolist()]
        votes(answer, answers, scores)
