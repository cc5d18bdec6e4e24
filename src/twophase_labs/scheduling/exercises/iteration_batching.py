"""4.1 and 4.2 Static batching and iteration-level batching, in a model whose only clock is the step."""

from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number
from twophase_labs.scheduling.load import MAX_NUM_SEQS, drawn_lengths


def static_use() -> float:
    lengths = drawn_lengths()
    num_steps = sum(max(lengths[first : first + MAX_NUM_SEQS]) for first in range(0, len(lengths), MAX_NUM_SEQS))
    return sum(lengths) / (MAX_NUM_SEQS * num_steps)


GUESS_4_1 = exercise("4.1", "The share that works", kind="prediction", points=1, minutes=2)
GUESS_4_1.objective = "predict the waste of static batching"
GUESS_4_1.hints = ("Of eight lengths drawn from 1 to 200, how long is the longest, roughly? And the mean?",)
GUESS_4_1.question = Number(
    static_use, abs=0.08, hint="The batch lasts as long as its longest; the mean of 1 to 200 is half of 200."
)

ITERATION = exercise(
    "4.2", "Iteration-level batching", "iteration_level", points=3, minutes=10, lines=6, difficulty=2, time_limit_s=10
)
ITERATION.objective = "let requests join and leave at every step"
ITERATION.hints = (
    "Walk through the steps: before each one, waiting requests take what batch slots are free; then every request at "
    "work gets a token; those that have all of theirs leave.",
    "Keep three things: how many requests have started (they start in order of arrival), the tokens that each one "
    "at work still has to get, and the number of the step, `now`. A request that gets its last token in step `now` "
    "has the span that ends at now + 1.",
    "waiting, left, first, spans, now = deque(range(len(lengths))), {}, {}, {}, 0\n"
    "while waiting or left:\n"
    "    while ...:                       # a batch slot is free, and the head of `waiting` has arrived\n"
    "        request = waiting.popleft()\n"
    "        left[request], first[request] = ...\n"
    "    now += 1\n"
    "    for request in list(left):\n"
    "        left[request] -= 1\n"
    "        if ...:                      # it has all its tokens\n"
    "            spans[request] = ...\n"
    "return [spans[request] for request in range(len(lengths))]",
)


@ITERATION.check("runs one request", arrival=(0, 7))
def one_alone(answer: Any, draw: Draw, arrival: int) -> None:
    """It starts when it arrives, and ends after as many steps as it has tokens."""
    told(answer.iteration_level, iteration_oracle, [arrival], [draw.integer(2, 9)], 2)


Spans = list[tuple[int, int]]


def iteration_oracle(arrivals: list[int], lengths: list[int], max_num_seqs: int) -> Spans:
    """Batch slots as a list of the steps in which they become free: a request takes the first that is."""
    free_from = [0] * max_num_seqs
    spans: Spans = []
    for arrival, length in zip(arrivals, lengths, strict=True):
        place = min(range(max_num_seqs), key=free_from.__getitem__)
        first = max(arrival, free_from[place], spans[-1][0] if spans else 0)
        spans.append((first, first + length))
        free_from[place] = first + length
    return spans


def workload(draw: Draw, num: int, spread: int, longest: int = 9) -> tuple[list[int], list[int]]:
    arrivals = sorted(draw.integer(0, spread + 1) for _ in range(num))
    return arrivals, [draw.integer(1, longest + 1) for _ in range(num)]


def spans_of(got: Any) -> Spans:
    if not isinstance(got, list | tuple) or any(not isinstance(span, list | tuple) or len(span) != 2 for span in got):
        reject(f"the result is {got!r}, expected a list of pairs (first, end)")
    return [(int(first), int(end)) for first, end in got]


def told(function: Any, oracle: Any, arrivals: list[int], lengths: list[int], max_num_seqs: int) -> None:
    with unchanged(arrivals=arrivals, lengths=lengths):
        got = spans_of(function(arrivals, lengths, max_num_seqs))
    expected = oracle(arrivals, lengths, max_num_seqs)
    for request, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            reject(
                f"request {request} computes in [{one[0]}, {one[1]}), expected [{other[0]}, {other[1]})",
                f"arrivals {arrivals}, lengths {lengths}, {max_num_seqs} batch slots",
                f"got      {got}",
                f"expected {expected}",
            )
    compare(len(got), len(expected), what="the number of spans")


@ITERATION.check("fills a batch slot as soon as it is free", max_num_seqs=(1, 3))
def fills_a_free_place(answer: Any, draw: Draw, max_num_seqs: int) -> None:
    """A request that ends in a step leaves its slot to the next one in the queue, for the very next step."""
    _, lengths = workload(draw, 3 * max_num_seqs + 1, 0)
    told(answer.iteration_level, iteration_oracle, [0] * len(lengths), lengths, max_num_seqs)


@ITERATION.check(
    "lets requests join while others run", {"spread": 5}, {"spread": 60}, {"spread": 3, "num": 150, "max_num_seqs": 70}
)
def lets_them_join_late(answer: Any, draw: Draw, spread: int, num: int = 10, max_num_seqs: int = 3) -> None:
    """A request starts at its arrival if a batch slot is free, whatever else is in the middle of an answer."""
    for _ in range(10):
        arrivals, lengths = workload(draw, num, spread, longest=9 if num < 20 else 150)
        told(answer.iteration_level, iteration_oracle, arrivals, lengths, max_num_seqs)


@ITERATION.check("never uses more slots than there are")
def never_more_than_slots(answer: Any, draw: Draw) -> None:
    """Count the requests at work."""
    arrivals, lengths = workload(draw, 20, 6)
    got = spans_of(answer.iteration_level(list(arrivals), list(lengths), 3))
    for now in range(max(end for _, end in got)):
        at_work = [request for request, (first, end) in enumerate(got) if first <= now < end]
        if len(at_work) > 3:
            reject(f"in step {now} the requests {at_work} are at work, and there are 3 batch slots")
