"""Answers that prove the check of exercise 5.5."""

from twophase.workbook.exercise import Bank, Right, Wrong

EQUALS, LENGTH, ALIKE, NOISE = (
    "finds the secret among equals",
    "is not misled by length",
    "is not misled by prompts that begin alike",
    "stands some noise",
)
WARM_UP = """
def find_secret(ask, candidates):
    for candidate in candidates:
        ask(candidate)
    times = [ask(candidate) for candidate in candidates]
    return times.index(min(times))
"""
BEST_OF_THREE = """
def find_secret(ask, candidates):
    times = [min(ask(candidate) for _ in range(3)) for candidate in candidates]
    return times.index(min(times))
"""
FASTEST = """
def find_secret(ask, candidates):
    times = [ask(candidate) for candidate in candidates]
    return times.index(min(times))
"""
PER_TOKEN = """
def find_secret(ask, candidates):
    times = [ask(candidate) / len(candidate) for candidate in candidates]
    return times.index(min(times))
"""
EXACTLY_EQUAL = """
def find_secret(ask, candidates):
    for position, candidate in enumerate(candidates):
        if abs(ask(candidate) - ask(candidate)) < 1e-9:
            return position
    return 0
"""
MEAN_OF_FIVE = """
def find_secret(ask, candidates):
    times = [sum(ask(candidate) for _ in range(5)) / 5 for candidate in candidates]
    return times.index(min(times))
"""
DIFFERENCE = """
def find_secret(ask, candidates):
    saved = [ask(candidate) - ask(candidate) for candidate in candidates]
    return min(range(len(saved)), key=lambda position: saved[position])
"""
ALL_THEN_ALL = """
def find_secret(ask, candidates):
    first = [ask(candidate) for candidate in candidates]
    again = [min(ask(candidate) for _ in range(3)) for candidate in candidates]
    known = [new / old for new, old in zip(first, again)]
    return known.index(min(known))
"""

BANKS = {
    "5.5": Bank(
        wrong=(
            Wrong("a warm-up first, as benchmarks do", WARM_UP, EQUALS),
            Wrong("the best of three", BEST_OF_THREE, EQUALS),
            Wrong("the one that gained most", {2: "gains.index(max(gains))"}, EQUALS),
            Wrong("the second time alone", {1: "ask(candidate)\ngains.append(ask(candidate))"}, EQUALS),
            Wrong("the fastest", FASTEST, LENGTH),
            Wrong("the mean of five", MEAN_OF_FIVE, LENGTH),
            Wrong("the fastest per token", PER_TOKEN, ALIKE),
            Wrong("two times that are exactly equal", EXACTLY_EQUAL, NOISE),
        ),
        right=(
            Right("the difference", DIFFERENCE),
            Right("all of them, then all again", ALL_THEN_ALL),
        ),
    ),
}
