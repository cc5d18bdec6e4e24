"""Prefix caching: what a clock tells a stranger."""

from collections.abc import Callable
from typing import Any

from twophase_labs.advanced.prefix_service import BLOCK, PaperService
from twophase_labs.machine.checks import Draw, amount, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

RECOVER = exercise(
    "5.3", "Read a stranger's prompt with a clock", "recover", points=2, minutes=8, lines=3, difficulty=2
)
RECOVER.time_limit_s = 10
RECOVER.objective = "see shared state as a channel: what can be measured can be read"
RECOVER.hints = (
    "Begin with the first part: one of its options is the beginning of what the engine has seen, and a prompt of "
    "known blocks is fast.",
    "By asking for a prompt you put it into the cache: there is no second first time. No warm-up, no best of three; "
    "one question for each option.",
    "known, found = [], []\nfor options in parts:\n    times = ...  # one request per option, behind `known`\n"
    "    pick = ...  # of the shortest time\n    found.append(pick)\n    known = ...\nreturn found",
)

Parts = list[list[list[int]]]


def random_parts(draw: Draw, num_options: list[int], lengths: Callable[[], int]) -> Parts:
    """For each part so many options, all different from their first token on."""
    return [[[draw.integer(0, 50_000) for _ in range(lengths())] for _ in range(num)] for num in num_options]


def recovered(answer: Any, draw: Draw, service: PaperService, parts: Parts) -> int:
    """Somebody used one option of each part; does the answer find which? Returns how many questions it asked."""
    secret = [draw.integer(0, len(options)) for options in parts]
    service([token for options, pick in zip(parts, secret, strict=True) for token in options[pick]])
    theirs = [[list(option) for option in options] for options in parts]
    with unchanged(parts=theirs):
        got = answer.recover(service, theirs)
    if not isinstance(got, list | tuple):
        reject(f"the result is {got!r:.80}, expected a list: for each part the position of the option that was used")
    compare(list(got), secret, what=f"what was found of {amount(len(parts), 'part')}", axes=("part",))
    return service.num_requests - 1


@RECOVER.check("finds a prompt of one part", num=(2, 6, 40))
def finds_one_part(answer: Any, draw: Draw, num: int) -> None:
    """Of the options one is known. Ask once for each and compare the times: only the first question tells anything,
    since your own request makes a prompt known, too."""
    for _ in range(12):
        recovered(answer, draw, PaperService(), random_parts(draw, [num], lambda: 4 * BLOCK))


@RECOVER.check("finds all parts", num_parts=(2, 4, 12))
def finds_all_parts(answer: Any, draw: Draw, num_parts: int) -> None:
    """The second part was computed behind the first. Alone, or behind a wrong one, it is as new as any."""
    for _ in range(4):
        nums = [draw.integer(2, 5) for _ in range(num_parts)]
        recovered(answer, draw, PaperService(), random_parts(draw, nums, lambda: 4 * BLOCK))


@RECOVER.check("asks once for each option")
def asks_little(answer: Any, draw: Draw) -> None:
    """Trying whole prompts takes the product of the numbers of options. Part by part it is their sum."""
    nums = [4, 5, 3, 4]
    num_asked = recovered(answer, draw, PaperService(), random_parts(draw, nums, lambda: 4 * BLOCK))
    if num_asked > sum(nums):
        reject(f"{num_asked} questions for parts of {nums} options; {sum(nums)} are enough: one for each option")


@RECOVER.check("finds parts of any length")
def of_any_length(answer: Any, draw: Draw) -> None:
    """Parts need not be whole blocks: put the options right behind what you know, without a gap."""
    for _ in range(4):
        recovered(answer, draw, PaperService(), random_parts(draw, [3, 4, 2], lambda: draw.integer(52, 90)))


@RECOVER.check("works on any machine", base_s=(0.3, 0.001), token_s=(0.01, 0.0001))
def on_any_machine(answer: Any, draw: Draw, base_s: float, token_s: float) -> None:
    """Compare times with each other, not with a number of seconds."""
    for _ in range(3):
        service = PaperService(base_s, token_s)
        recovered(answer, draw, service, random_parts(draw, [4, 3, 4], lambda: 4 * BLOCK))


@RECOVER.check("stands some noise")
def with_noise(answer: Any, draw: Draw) -> None:
    """No two times are equal on a real machine: look for the shortest."""
    # Every request takes up to a fifth longer than it should.
    for _ in range(4):
        service = PaperService(slip=lambda: 1 + 0.2 * draw.random.random())
        recovered(answer, draw, service, random_parts(draw, [4, 3, 4], lambda: draw.integer(60, 80)))
