"""Heavy hitters: a cache that keeps the keys which got most attention (H2O)."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, amount, compare, integers, reject, unchanged
from twophase_labs.machine.exercise import exercise

# num_recent is 0 to budget. These are cases, so that where an answer raises an error the learner is shown both.
SIZES = tuple(
    {"budget": budget, "num_recent": num_recent}
    for budget, num_recent in ((3, 1), (1, 1), (4, 0), (1, 0), (5, 2), (5, 5), (6, 4))
)


HEAVY = exercise(
    "5.10", "Keep what gets attention", "heavy_hitters", points=3, minutes=10, lines=8, difficulty=2, is_extra=True
)
HEAVY.time_limit_s = 15
HEAVY.objective = "evict by accumulated attention, and see what that rule keeps that a window does not"
HEAVY.hints = (
    "Go through the queries in order. Each one brings a key of its own, then adds its row to the scores of the keys "
    "that are held, and only then one key may have to go.",
    "Hold the positions in a list, oldest first. All but its last `num_recent` may go; the one with the smallest "
    "score does, the older of two equal ones.",
    "scores, held = ..., []\nfor query, row in enumerate(weights.tolist()):\n    ...  # it takes a slot\n"
    "    for key in held:\n        ...\n    if ...:\n        may_go = ...  # all but the newest\n        ...\n"
    "return held",
)


def weights_of(draw: Draw, num_tokens: int) -> Tensor:
    """Rows over the past. Multiples of 1/64, so that sums are exact in any order; ties are common."""
    counts = draw.integers(0, 9, num_tokens, num_tokens).tril().double()
    return (counts / 64).float()


def plain(weights: Tensor, budget: int, num_recent: int) -> list[int]:
    """The oracle: looks through all positions each time, and adds up columns anew."""
    rows = weights.double().tolist()
    gone: set[int] = set()
    for query in range(len(rows)):
        held = [key for key in range(query + 1) if key not in gone]
        if len(held) > budget:
            candidates = [key for key in held if key <= query - num_recent]
            sums = {key: sum(rows[t][key] for t in range(key, query + 1)) for key in candidates}
            gone.add(min(candidates, key=lambda key: (sums[key], key)))
    return [key for key in range(len(rows)) if key not in gone]


def expect(answer: Any, weights: Tensor, budget: int, num_recent: int) -> None:
    with unchanged(weights=weights):
        got = answer.heavy_hitters(weights, budget, num_recent)
    if not isinstance(got, list):
        reject(f"the result is {got!r:.80}, expected a list of positions")
    what = f"what is kept of {amount(len(weights), 'token')} (budget={budget}, num_recent={num_recent})"
    compare(integers(got), plain(weights, budget, num_recent), what=what, axes=("place",))


@HEAVY.check("keeps all that fits", *SIZES)
def keeps_what_fits(answer: Any, draw: Draw, budget: int, num_recent: int) -> None:
    """As long as no more than `budget` tokens are there, none goes."""
    for num_tokens in sorted({0, 1, budget // 2, budget}):
        expect(answer, weights_of(draw, num_tokens), budget, num_recent)
    expect(answer, torch.diag(torch.arange(1.0, budget + 1) / 8), budget, num_recent)  # newer ones are heavier


@HEAVY.check("keeps to the budget", *SIZES)
def keeps_to_the_budget(answer: Any, draw: Draw, budget: int, num_recent: int) -> None:
    """After each token at most `budget` are held, the newest included; the recent ones are a part of them."""
    for _ in range(3):
        weights = weights_of(draw, budget + draw.integer(1, 8))
        got = answer.heavy_hitters(weights, budget, num_recent)
        if not isinstance(got, list) or len(got) != budget:
            wanted = f"a list of {amount(budget, 'position')}"
            reject(f"of {len(weights)} tokens {got!r:.80} is kept, expected {wanted}")


@HEAVY.check("is a window where all are recent")
def is_a_window(answer: Any, draw: Draw) -> None:
    """With num_recent = budget the one that goes is always the oldest."""
    for budget in (1, 2, 5):
        expect(answer, weights_of(draw, 12), budget, budget)


@HEAVY.check("drops the key with the least attention")
def drops_the_lightest(answer: Any, draw: Draw) -> None:
    """Compare the scores of those that may go after the newest query has given its attention."""
    # One eviction, at the last token, with clear sums.
    for order in ([2, 1, 0], [1, 2, 0, 3], draw.permutation(draw.integer(2, 7)).tolist()):
        num_tokens = len(order) + 1
        weights = torch.zeros(num_tokens, num_tokens)
        weights[-1, : num_tokens - 1] = torch.tensor([1.0 + place for place in order]) / 64
        expect(answer, weights, num_tokens - 1, 1)


@HEAVY.check("adds up over all queries")
def adds_up(answer: Any, draw: Draw) -> None:
    """A key's score is what all queries so far gave it, from its own on, not what the last one gave."""
    # What an early query gave counts as much as what the last one gives.
    weights = torch.zeros(4, 4)
    weights[1, 0], weights[3, 1], weights[3, 2], weights[2, 2] = 0.75, 0.25, 0.125, 0.25
    expect(answer, weights, 3, 1)
    weights = torch.zeros(5, 5)
    weights[1:4, 0], weights[4, 1:4] = 0.125, torch.tensor([0.25, 0.5, 0.5])
    expect(answer, weights, 4, 1)
    weights = torch.zeros(70, 70)  # a sum of long ago does not fade
    weights[0, 0], weights[68, 1], weights[69, 2:69] = 33 / 64, 32 / 64, 1.0
    expect(answer, weights, 69, 1)


@HEAVY.check("never brings a key back")
def never_brings_back(answer: Any, draw: Draw) -> None:
    """What was dropped is overwritten. So decide token by token, not once at the end."""
    # A key that is dropped early, and would be the heaviest at the end.
    weights = torch.zeros(6, 6)
    weights[:, 0] = 0.25
    weights[4:, 1] = 0.75  # too late
    weights[2:, 2], weights[3:, 3] = 0.125, 0.0625
    expect(answer, weights, 3, 1)
    expect(answer, weights, 2, 1)


@HEAVY.check("protects the newest")
def protects_the_newest(answer: Any, draw: Draw) -> None:
    """The `num_recent` newest never go, however little attention they had time to get; all others may."""
    weights = torch.zeros(8, 8)
    weights[:, 0] = 0.5
    for num_recent in (0, 1, 3, 4):
        expect(answer, weights, 4, num_recent)


@HEAVY.check("drops the older of two equal ones")
def drops_the_older_of_equals(answer: Any, draw: Draw) -> None:
    """Of equal scores the lower position goes."""
    expect(answer, torch.zeros(7, 7), 3, 1)
    expect(answer, torch.zeros(7, 7), 3, 0)


@HEAVY.check("agrees with a plain cache", num_tokens=(6, 20, 120))
def agrees(answer: Any, draw: Draw, num_tokens: int) -> None:
    """Some mixture goes wrong; the details name the place."""
    for _ in range(8 if num_tokens < 50 else 1):
        budget = draw.integer(1, max(2, num_tokens // 2))
        expect(answer, weights_of(draw, num_tokens), budget, draw.integer(0, budget + 1))


@HEAVY.check("takes large budgets")
def takes_large_budgets(answer: Any, draw: Draw) -> None:
    """Every key that is held and not one of the newest may go, however many there are."""
    budget = draw.integer(80, 90)
    expect(answer, weights_of(draw, budget + 8), budget, draw.integer(0, 4))
