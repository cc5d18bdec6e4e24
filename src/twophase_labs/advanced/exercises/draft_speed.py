"""Speculative decoding: what it can gain, and whether it does."""

from fractions import Fraction
from typing import Any

from twophase_labs.machine.checks import Draw, amount, compare, integer, reject
from twophase_labs.machine.exercise import exercise

SPEED = exercise(
    "5.7", "What a draft is worth", "expected_tokens speed_up best_num_draft", points=2, minutes=9, lines=4
)
SPEED.time_limit_s, SPEED.is_extra, SPEED.difficulty = 10, True, 2
SPEED.objective = "compute the speed-up from acceptance and costs, and when to draft nothing"
SPEED.hints = (
    "A pass yields 1 token for sure, a second one with probability alpha, a third with alpha squared, ...",
    "Without drafts, so many tokens would take as many steps. With drafts they take one pass, which costs a step, "
    "plus for each draft what it costs to make and to verify.",
    "Speed-up with 0 drafts is 1. So let the best of 0, 1, ..., most decide, and 0 means: off.",
)


def counted(alpha: float, num_draft: int) -> float:
    """The oracle: tokens of a pass, outcome by outcome. Exactly i drafts accepted, and one more token."""
    share, total = Fraction(alpha), Fraction(0)
    for num_accepted in range(num_draft):
        total += share**num_accepted * (1 - share) * (num_accepted + 1)
    return float(total + share**num_draft * (num_draft + 1))


@SPEED.check("counts the tokens of a pass", num_draft=(0, 1, 4, 9, 60))
def counts_tokens(answer: Any, draw: Draw, num_draft: int) -> None:
    """The sum of alpha^i for i from 0 to num_draft: a geometric series."""
    for alpha in (0.0, 0.3, 0.5, 0.8, 0.95, draw.random.random()):
        got = answer.expected_tokens(alpha, num_draft)
        what = f"the tokens of a pass with {amount(num_draft, 'draft')}, acceptance {alpha:.2f}"
        compare(float(got), counted(alpha, num_draft), what=what)


@SPEED.check("knows what certainty gives")
def counts_certain_ones(answer: Any, draw: Draw) -> None:
    """At alpha = 1 the closed form divides by 0; the sum has num_draft + 1 terms of 1."""
    for num_draft in (0, 1, 4):
        got = answer.expected_tokens(1.0, num_draft)
        what = f"the tokens of a pass with {amount(num_draft, 'draft')}, all accepted"
        compare(float(got), float(num_draft + 1), what=what)


@SPEED.check("divides by what drafting costs", num_draft=(1, 5))
def divides_by_costs(answer: Any, draw: Draw, num_draft: int) -> None:
    """Each draft costs `draft_cost` steps, accepted or not; the pass itself costs 1."""
    alpha, draft_cost = 0.1 + 0.8 * draw.random.random(), 0.01 + 0.3 * draw.random.random()
    got = answer.speed_up(alpha, num_draft, draft_cost, 0.0)
    expected = counted(alpha, num_draft) / (num_draft * draft_cost + 1)
    what = (
        f"the speed-up with {amount(num_draft, 'draft')} at {draft_cost:.2f} each, {alpha:.2f} accepted, free to verify"
    )
    compare(float(got), expected, what=what)


@SPEED.check("pays for verifying", num_draft=(1, 5))
def pays_for_verifying(answer: Any, draw: Draw, num_draft: int) -> None:
    """Each draft makes the pass longer, by `verify_cost` steps."""
    alpha, verify_cost = 0.1 + 0.8 * draw.random.random(), 0.01 + 0.4 * draw.random.random()
    for draft_cost in (0.0, 0.2):
        got = answer.speed_up(alpha, num_draft, draft_cost, verify_cost)
        expected = counted(alpha, num_draft) / (1 + num_draft * draft_cost + num_draft * verify_cost)
        costs = f"{draft_cost:.2f} to make and {verify_cost:.2f} to verify each"
        what = f"the speed-up with {amount(num_draft, 'draft')}, {costs}"
        compare(float(got), expected, what=what)


@SPEED.check("chooses the best number")
def chooses_the_best(answer: Any, draw: Draw) -> None:
    """Compare all numbers from 0 to `most`, both included."""
    for _ in range(30):
        alpha, most = draw.random.random(), draw.integer(1, 17)
        draft_cost, verify_cost = draw.choice((0.0, 0.05, 0.2)), draw.choice((0.01, 0.1, 0.3))
        speeds = [counted(alpha, k) / (1 + k * (draft_cost + verify_cost)) for k in range(most + 1)]
        returned = answer.best_num_draft(alpha, draft_cost, verify_cost, most)
        got = integer(returned)
        if got is None or not 0 <= got <= most:
            reject(f"the best number of drafts is {returned!r}, expected a whole number from 0 to {most}")
        if speeds[got] < max(speeds) - 1e-9:
            reject(
                f"with {amount(got, 'draft')} the speed-up is {speeds[got]:.3f}, with {speeds.index(max(speeds))} it "
                f"would be {max(speeds):.3f}",
                f"{alpha:.2f} accepted, {draft_cost} to make and {verify_cost} to verify each, at most {most}",
            )


@SPEED.check("goes as far as it may")
def goes_as_far_as_it_may(answer: Any, draw: Draw) -> None:
    """`most` is the largest number allowed, 16 unless another is given, and may itself be the best."""
    # Drafts that are certain and cost next to nothing: as many as allowed, 16 if nothing else is said.
    for alpha in (1.0, 0.9999):
        for expected, more in ((16, ()), (0, (0.0, 0)), (1, (0.0, 1)), (80, (0.0, 80))):
            got = answer.best_num_draft(alpha, 0.001, *more)
            what = f"the best number of drafts, {alpha:.2%} accepted at a cost of 0.001, with most={expected}"
            compare(got if integer(got) is None else integer(got), expected, what=what)


@SPEED.check("gives the examples of the text")
def knows_the_examples(answer: Any, draw: Draw) -> None:
    """Do the three examples by hand."""
    compare(float(answer.expected_tokens(0.5, 2)), 1.75, what="expected_tokens(0.5, 2)")
    compare(float(answer.speed_up(0.5, 2, draft_cost=0.1)), 1.75 / 1.2, what="speed_up(0.5, 2, draft_cost=0.1)")
    got = answer.best_num_draft(0.1, draft_cost=0.3, verify_cost=0.1)
    compare(integer(got), 0, what="best_num_draft(0.1, draft_cost=0.3, verify_cost=0.1)")


@SPEED.check("switches itself off")
def switches_off(answer: Any, draw: Draw) -> None:
    """0 is a choice, too: it costs nothing and gives 1."""
    for alpha, draft_cost, verify_cost in ((0.1, 0.3, 0.1), (0.0, 0.0, 0.05), (0.3, 0.0, 0.6), (0.2, 0.25, 0.0)):
        got = answer.best_num_draft(alpha, draft_cost, verify_cost, 8)
        if got != 0:
            reject(
                f"{alpha:.0%} accepted at a cost of {draft_cost} + {verify_cost} each: no draft pays, and the best "
                f"number of drafts is given as {got!r}"
            )
