"""Counting the work of generation, with and without a cache."""

from typing import Any

from twophase_labs.machine.checks import Draw, compare, integer, reject
from twophase_labs.machine.exercise import Test, cases, exercise

CASES = cases(num_prompt=(1, 1, 1, 4, 7, 5, 300, 70, 1), num_new=(0, 1, 3, 2, 12, 0, 2, 150, 400))
SKELETON = """In words of code:
    positions = pairs = 0
    for length in the text's length before each pass, num_prompt to num_prompt + num_new - 1:
        start = the first position that this pass computes
        positions += how many positions it computes
        pairs += p + 1 for each of these positions p
    return positions, pairs"""

WORK = exercise("1.4", "Count the work", "count_work", points=4, minutes=8, lines=6, difficulty=2)
WORK.objective = "count tokens and query-key pairs of a generation"
WORK.hints = (
    "Write down the passes for 2 prompt tokens and 3 new ones: 2, 3 and 4 positions without a cache; and with one?",
    "A pass over a text of `length` tokens computes the positions from `start` to `length` - 1. Without a cache "
    "`start` is always 0; with one it is how long the text was in the pass before. The query at position p looks at "
    "p + 1 keys.",
    SKELETON,
)


def enumerated(num_prompt: int, num_new: int, cached: bool) -> tuple[int, int]:
    """Every query position of every pass, one by one, and the keys it looks at."""
    known: set[int] = set()
    num_tokens = num_pairs = 0
    for turn in range(num_new):
        for query in range(num_prompt + turn):
            if not (cached and query in known):
                num_tokens += 1
                num_pairs += len(range(query + 1))
        known |= set(range(num_prompt + turn))
    return num_tokens, num_pairs


@WORK.check("returns two counts", cached=(False, True))
def returns_two_counts(answer: Any, draw: Draw, cached: bool) -> None:
    """Return positions and pairs, in this order."""
    got = answer.count_work(2, 2, cached)
    if not (isinstance(got, tuple | list) and len(got) == 2):
        reject(f"the result is {got!r}, expected two numbers: tokens and pairs")


def counts(which: int, cached: bool) -> Test:
    """The test of one of the two counts in one of the two modes."""
    what = f"the number of {('positions', 'query-key pairs')[which]} {'with' if cached else 'without'} a cache"

    def test(answer: Any, draw: Draw, num_prompt: int, num_new: int) -> None:
        expected = enumerated(num_prompt, num_new, cached)[which]
        got = answer.count_work(num_prompt, num_new, cached)[which]
        compare(got if integer(got) is None else integer(got), expected, what=what)

    return test


WORK.check(
    "counts tokens without a cache",
    *CASES,
    hint="There are num_new passes. Without a cache each starts at position 0 and computes the text so far.",
)(counts(0, cached=False))
WORK.check(
    "counts tokens with a cache",
    *CASES,
    hint="A pass leaves all positions below `length` in the cache, and the next pass starts there. The last token "
    "written is never read.",
)(counts(0, cached=True))
WORK.check(
    "counts pairs without a cache", *CASES, hint="The query at position p looks at the keys 0 to p: p + 1 of them."
)(counts(1, cached=False))
WORK.check(
    "counts pairs with a cache",
    *CASES,
    hint="A cached key is not computed again, but it is still looked at: count p + 1 for every query position.",
)(counts(1, cached=True))
