"""A budget of memory, and what it serves."""

from fractions import Fraction
from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

FIT = exercise("1.10", "How many fit", "requests_that_fit", points=3, minutes=4, lines=2, time_limit_s=5)
FIT.objective = "turn a card's memory into a number of concurrent requests"
FIT.hints = (
    "Compute the bytes left for K and V first and print them.",
    "Headroom is a share of the whole card; weights and workspace come off what is usable.",
    "card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB, then divide, round down, never below 0.",
)


@FIT.check(
    "divides what the weights leave",
    {"card_gb": 2, "weights_gb": 1},
    {"card_gb": 24, "weights_gb": 14},
    {"card_gb": 80, "weights_gb": 16},
    {"card_gb": 80, "weights_gb": 16, "spare": 0.02},
    {"card_gb": 80, "weights_gb": 16, "spare": 0.98},
)
def divides_what_is_left(answer: Any, draw: Draw, card_gb: int, weights_gb: int, spare: float = 0.5) -> None:
    # A part of a request to spare, so that rounding errors decide nothing.
    """1 GB is 10^9 bytes, 1 GiB is 2^30. What the weights leave, divided by a request, rounded down."""
    num_requests = draw.integer(20, 200)
    request_bytes = int(Fraction((card_gb - weights_gb) * GB) / (num_requests + Fraction(spare)))
    got = the_call(answer, card_gb, weights_gb, request_bytes)
    if got == (card_gb - weights_gb) * GIB // request_bytes != num_requests:
        reject(
            f"{got} requests of {request_bytes:,} bytes in {card_gb - weights_gb} GB, expected {num_requests}",
            f"{got} of them fit into {card_gb - weights_gb} GiB",
        )
    compare(got, num_requests, what="the number of requests")


def part_of_a_gb(draw: Draw) -> float:
    """0.3 to 0.7: sizes are not whole GB."""
    return draw.integer(30, 71) / 100


@FIT.check("keeps the headroom", utilisation=(0.5, 0.875, 0.93))
def keeps_headroom(answer: Any, draw: Draw, utilisation: float) -> None:
    """`utilisation` is a share of the whole card, not of what the weights leave."""
    card_gb, weights_gb = draw.integer(60, 200), 16 + part_of_a_gb(draw)
    left = Fraction(card_gb * GB) * Fraction(utilisation) - Fraction(weights_gb) * GB
    num_requests = draw.integer(100, 200)  # of less than 1 GB: a lost part of a GB is a lost request
    request_bytes = int(left / Fraction(2 * num_requests + 1, 2))
    got = the_call(answer, card_gb, weights_gb, request_bytes, utilisation=utilisation)
    compare(got, num_requests, what="the number of requests")


@FIT.check(
    "leaves room for the workspace", {"workspace_gb": 1}, {"workspace_gb": 4}, {"workspace_gb": 2, "utilisation": 0.9}
)
def leaves_room_to_work(answer: Any, draw: Draw, workspace_gb: int, utilisation: float = 0.75) -> None:
    """The workspace is taken from the usable bytes, as the weights are."""
    work_gb = workspace_gb + part_of_a_gb(draw)
    left = Fraction(24 * GB) * Fraction(utilisation) - (7 + Fraction(work_gb)) * GB
    num_requests = draw.integer(100, 200)
    request_bytes = int(left / Fraction(2 * num_requests + 1, 2))
    got = the_call(answer, 24, 7, request_bytes, utilisation=utilisation, workspace_gb=work_gb)
    compare(got, num_requests, what="the number of requests")


@FIT.check("counts whole requests only", num_requests=(3, 24, 1000), utilisation=(1.0, 0.5, 0.5))
def lets_the_last_one_in(answer: Any, draw: Draw, num_requests: int, utilisation: float) -> None:
    """Rounded down: a request that lacks one byte does not fit, and one that just fits does."""
    # Room for exactly so many, and for one byte less than that; halves and quarters are exact in floats.
    request_bytes = 2 * GB
    card_gb = int((2 * num_requests + 4) / utilisation)
    got = the_call(answer, card_gb, 4, request_bytes, utilisation=utilisation)
    compare(got, num_requests, what="the number of requests when the last one just fits")
    got = the_call(answer, card_gb, 4, request_bytes + 1, utilisation=utilisation)
    compare(got, num_requests - 1, what="the number of requests when the last one lacks a byte")


@FIT.check(
    "serves none when the weights fill the card",
    {"card_gb": 16, "weights_gb": 16},
    {"card_gb": 80, "weights_gb": 140},
    {"card_gb": 80, "weights_gb": 79.9},
    {"card_gb": 80, "weights_gb": 70, "utilisation": 0.75},
    {"card_gb": 80, "weights_gb": 60, "workspace_gb": 30},
    {"card_gb": 80, "weights_gb": 30, "utilisation": 0.5, "workspace_gb": 20},
)
def serves_none_without_room(
    answer: Any, draw: Draw, card_gb: int, weights_gb: float, utilisation: float = 1.0, workspace_gb: int = 0
) -> None:
    """Fewer than no requests is no answer: `max(0, ...)`."""
    got = the_call(answer, card_gb, weights_gb, 512 * 2**20, utilisation=utilisation, workspace_gb=workspace_gb)
    what = (
        f"the number of requests, with {weights_gb:g} + {workspace_gb} GB of {utilisation:.0%} of {card_gb} GB taken,"
    )
    compare(got, 0, what=what)


GB, GIB = 10**9, 2**30


def the_call(answer: Any, *args: Any, **kwargs: Any) -> int:
    got = answer.requests_that_fit(*args, **kwargs)
    if isinstance(got, float) and got.is_integer():
        return int(got)  # `is_whole` judges the type, so that a wrong number is told first
    if isinstance(got, float):
        reject(f"the number of requests is {got!r}", "Requests are whole: round down with `//`, `int` or `math.floor`.")
    return got


@FIT.check("gives an int")
def is_whole(answer: Any, draw: Draw) -> None:
    """Requests are counted."""
    got = answer.requests_that_fit(10, 4, 2 * GB)
    if isinstance(got, float):
        reject(
            f"the number of requests is the float {got!r}",
            "`//` of a float is still a float: `int(...)` makes it whole.",
        )


ANSWER_1_11 = exercise(
    "1.11", "Tokens per second from Little's law", kind="numeric", points=1, minutes=3, is_extra=True
)
ANSWER_1_11.objective = "go from concurrency and latency to throughput"
ANSWER_1_11.hints = (
    "Requests per second first, then tokens.",
    "119 at a time, 12 seconds each: how many end per second?",
)
ANSWER_1_11.question = Number(
    lambda: 119 / 12 * 300,
    rel=0.01,
    unit="tokens/s",
    hint="requests per second = requests running / seconds each stays; then times tokens per request.",
)
