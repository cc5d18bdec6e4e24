"""5.1 Prefix caching: what a clock tells a stranger."""

from typing import Any

from twophase.workbook.checks import Draw, compare
from twophase.workbook.exercise import Exercise, Property
from twophase.workbook.lab05.prefix_service import BLOCK, PaperService


def prompts(draw: Draw, num_blocks: list[int], num_shared: int = 0) -> list[list[int]]:
    """Candidates, so many full blocks each and a few tokens more; all begin with the same `num_shared` blocks."""
    shared = [draw.integer(0, 50_000) for _ in range(BLOCK * num_shared)]
    lengths = [BLOCK * (each - num_shared) + 8 for each in num_blocks]
    return [shared + [draw.integer(0, 50_000) for _ in range(length)] for length in lengths]


def finds(answer: Any, draw: Draw, service: PaperService, candidates: list[list[int]], secret: int) -> None:
    """Somebody used one of the prompts; does the answer say which?"""
    service(candidates[secret])
    got = answer.find_secret(service, [list(candidate) for candidate in candidates])
    lengths = [len(candidate) for candidate in candidates]
    compare(got, secret, what=f"the position of the secret among prompts of {lengths} tokens")


def among_equals(answer: Any, draw: Draw, num: int) -> None:
    for secret in range(num):
        finds(answer, draw, PaperService(), prompts(draw, [6] * num), secret)


def of_any_length(answer: Any, draw: Draw, num: int) -> None:
    for secret in range(num):
        finds(answer, draw, PaperService(), prompts(draw, [draw.integer(3, 12) for _ in range(num)]), secret)
    finds(answer, draw, PaperService(), prompts(draw, [3, 4, 30, 5]), 2)


def that_begin_alike(answer: Any, draw: Draw) -> None:
    """After the first of them, all the others are partly known, and a short secret is not the cheapest per token."""
    for secret in range(4):
        finds(answer, draw, PaperService(), prompts(draw, [8, 8, 9, 8], num_shared=6), secret)
    family, other = prompts(draw, [20, 20, 21], num_shared=18), prompts(draw, [3])
    for secret in range(4):
        finds(answer, draw, PaperService(), [*family, *other], secret)


def with_noise(answer: Any, draw: Draw) -> None:
    """Every request takes up to a fifth longer than it should."""
    for secret in range(5):
        service = PaperService(slip=lambda: 1 + 0.2 * draw.random.random())
        finds(answer, draw, service, prompts(draw, [6, 5, 8, 6, 7]), secret)


EXERCISES = (
    Exercise(
        id="5.5",
        title="Read a stranger's prompt with a clock",
        kind="code",
        names=("find_secret",),
        points=2,
        minutes=8,
        lines=4,
        difficulty=2,
        objective="see shared state as a channel: whoever can measure it can read it",
        hints=(
            "What is fast because it is short, and what because it is known? A second request for the same prompt "
            "tells: by then it is known in any case.",
            "The first request for a candidate answers the question, and by asking you have put it into the cache. "
            "There is no second first time: no warm-up, no best of three.",
            "For each candidate compare the first time with the second. Of the secret they are alike.",
        ),
        checks=(
            Property(
                "finds the secret among equals",
                among_equals,
                "All prompts are of one length, and one of them was used before. Only the first time you ask for a "
                "prompt tells anything: your own request makes it known, too.",
                ({"num": 2}, {"num": 5}),
            ),
            Property(
                "is not misled by length",
                of_any_length,
                "A short prompt is fast, known or not. What would this prompt take if it were known? Ask again, and "
                "you know.",
                ({"num": 2}, {"num": 6}),
            ),
            Property(
                "is not misled by prompts that begin alike",
                that_begin_alike,
                "Once you have asked for one of them, the beginning of the others is known as well. The secret alone "
                "takes no longer the first time than the second.",
            ),
            Property(
                "stands some noise",
                with_noise,
                "No two times are equal on a real machine: look for the smallest difference, not for none.",
            ),
        ),
        time_limit_s=10,
    ),
)
