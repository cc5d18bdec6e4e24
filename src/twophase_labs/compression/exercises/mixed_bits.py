"""6.16 and 6.17: bits for each part of a model, within a budget."""

from itertools import product
from math import inf
from typing import Any

from twophase_labs.machine.checks import Draw, integers, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_6_16 = exercise("6.16", "Do damages add up?", kind="prediction", points=1, minutes=1)
GUESS_6_16.objective = "expect what eight separate measurements say about the whole model"
GUESS_6_16.hints = (
    "If every part's error pushed the predictions the same way, the divergence of eight pushes would grow with the "
    "square of their number. What if they push in eight unrelated directions?",
)
GUESS_6_16.question = Number(lambda: 1, factor=1.5, unit="times", hint="Unrelated errors add up in their squares.")

FORMATS = exercise(
    "6.17", "Bits where they count", "choose_formats", points=4, minutes=9, lines=8, difficulty=2, is_extra=True
)
FORMATS.objective = "choose a format for each part of a model so that the damage is least within a budget of bytes"
FORMATS.hints = (
    "There are few parts and few formats. How many combinations are there for 8 parts with 3 formats each? That "
    "many can simply be tried.",
    "`itertools.product(*[range(len(formats)) for formats in options])` gives every combination as a tuple of "
    "indices. Of those within the budget, keep the one with the least sum of damages.",
    "best, least = None, float('inf')\n"
    "for chosen in product(...):\n"
    "    size = sum(...)\n"
    "    damage = sum(...)\n"
    "    if ...:\n"
    "        best, least = list(chosen), damage\n"
    "return best",
)

Options = list[list[tuple[float, float]]]


def least_damage(options: Options, budget: float) -> float:
    """Every combination, one after the other; infinite if none fits."""
    best = inf
    for chosen in product(*options):
        if sum(size for size, _ in chosen) <= budget:
            best = min(best, sum(damage for _, damage in chosen))
    return best


def chosen_by(answer: Any, options: Options, budget: float) -> list[int] | None:
    with unchanged(options=options):
        got = answer.choose_formats(options, budget)
    if got is None:
        return None
    numbers = integers(got)
    if numbers is None or len(numbers) != len(options):
        reject(f"choose_formats returned {got!r}, expected a list of {len(options)} indices, or None")
    for part, number in enumerate(numbers):
        if not 0 <= number < len(options[part]):
            reject(f"index {number} for part {part}, which has formats 0 to {len(options[part]) - 1}")
    return numbers


def judged(answer: Any, options: Options, budget: float) -> None:
    """Fits, and no other choice that fits does less damage."""
    got, least = chosen_by(answer, options, budget), least_damage(options, budget)
    if got is None:
        if least < inf:
            reject(f"choose_formats({options}, {budget}) returned None, but there is a choice that fits")
        return
    size, damage = (sum(options[part][number][i] for part, number in enumerate(got)) for i in (0, 1))
    if size > budget:
        reject(f"choose_formats({options}, {budget}) returned {got}, which takes {size:g}")
    if damage > least:
        reject(f"choose_formats({options}, {budget}) returned {got} with damage {damage:g}; {least:g} is possible")


def some_options(draw: Draw, num_parts: int, num_formats: int, largest: int = 20) -> Options:
    """Larger is better, or not: formats come in any order. Sizes are in quarters, so that sums are exact."""
    return [
        [(draw.integer(4, 4 * largest) / 4, float(draw.integer(0, largest))) for _ in range(num_formats)]
        for _ in range(num_parts)
    ]


@FORMATS.check("stays within the budget", num_parts=(1, 3, 5), num_formats=(2, 2, 3))
def fits(answer: Any, draw: Draw, num_parts: int, num_formats: int) -> None:
    """The sum of the sizes may be equal to the budget, not above it. When there is a choice that fits, the answer
    is a list."""
    # Budgets from the smallest possible size to the largest.
    options = some_options(draw, num_parts, num_formats)
    smallest = sum(min(size for size, _ in formats) for formats in options)
    largest = sum(max(size for size, _ in formats) for formats in options)
    for budget in {smallest, smallest + draw.integer(0, int(4 * (largest - smallest)) + 1) / 4, largest}:
        got = chosen_by(answer, options, budget)
        if got is None:
            reject(f"choose_formats({options}, {budget}) returned None, but there is a choice that fits")
        size = sum(options[part][number][0] for part, number in enumerate(got))
        if size > budget:
            reject(f"choose_formats({options}, {budget}) returned {got}, which takes {size:g}")


@FORMATS.check("says when nothing fits", num_parts=(1, 4))
def says_when_nothing_fits(answer: Any, draw: Draw, num_parts: int) -> None:
    """If even the smallest formats are too large together, the answer is None."""
    options = some_options(draw, num_parts, 2)
    budget = sum(min(size for size, _ in formats) for formats in options) - 1
    got = chosen_by(answer, options, budget)
    if got is not None:
        reject(f"choose_formats({options}, {budget}) returned {got}, which does not fit; nothing does: expected None")


@FORMATS.check("sees beyond the best ratio", num_pairs=(0, 3))
def sees_beyond_the_best_ratio(answer: Any, draw: Draw, num_pairs: int) -> None:
    """The upgrade with the best ratio of damage avoided to bytes can leave too little room for two others that
    avoid more together. Compare whole choices."""
    # The part with the best ratio of damage to size leaves no room for two others that are together better.
    extra = draw.integer(3, 9)
    large = [(0.0, 10.0 * extra), (float(extra + 1), 1.0)]  # the best ratio
    small = [[(0.0, 7.0 * extra), (float(extra), 1.0)] for _ in range(2)]
    idle = [[(1.0, 0.0), (2.0, 0.0)] for _ in range(num_pairs)]
    options = [large, *small, *idle]
    order = draw.permutation(len(options)).tolist()
    judged(answer, [options[i] for i in order], float(2 * extra + num_pairs))


@FORMATS.check("does the least damage", num_parts=(1, 2, 4, 7), num_formats=(3, 2, 3, 3))
def does_least_damage(answer: Any, draw: Draw, num_parts: int, num_formats: int) -> None:
    """Of all choices that fit, the sum of damages counts. Formats come in any order, and a larger one need not be
    better."""
    # In about half of the parts another format than the smallest is better; the largest budget has room for all.
    while True:
        options = some_options(draw, num_parts, num_formats)
        if sum(min(formats)[1] > min(damage for _, damage in formats) for formats in options) >= num_parts // 2:
            break
    smallest = sum(min(size for size, _ in formats) for formats in options)
    largest = sum(max(size for size, _ in formats) for formats in options)
    for _ in range(3):
        judged(answer, options, float(draw.integer(int(smallest), int(largest) + 1)))
    judged(answer, options, largest)
