"""4.2 Static batching and iteration-level batching, in a model whose only clock is the iteration."""

from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number
from twophase_labs.scheduling.load import NUM_SLOTS, drawn_lengths

Spans = list[tuple[int, int]]


def static_oracle(arrivals: list[int], lengths: list[int], num_slots: int) -> Spans:
    """Iteration by iteration: a batch is made when nobody is at work."""
    spans: dict[int, tuple[int, int]] = {}
    batch_end = now = 0
    while len(spans) < len(lengths):
        if now >= batch_end:
            there = [i for i in range(len(lengths)) if i not in spans and arrivals[i] <= now][:num_slots]
            for i in there:
                spans[i] = (now, now + lengths[i])
                batch_end = max(batch_end, now + lengths[i])
        now += 1
    return [spans[i] for i in range(len(lengths))]


def iteration_oracle(arrivals: list[int], lengths: list[int], num_slots: int) -> Spans:
    """Slots as a list of the iterations at which they become free: a request takes the first that is."""
    free_from = [0] * num_slots
    spans: Spans = []
    for arrival, length in zip(arrivals, lengths, strict=True):
        slot = min(range(num_slots), key=free_from.__getitem__)
        first = max(arrival, free_from[slot], spans[-1][0] if spans else 0)
        spans.append((first, first + length))
        free_from[slot] = first + length
    return spans


def workload(draw: Draw, num: int, spread: int, longest: int = 9) -> tuple[list[int], list[int]]:
    arrivals = sorted(draw.integer(0, spread + 1) for _ in range(num))
    return arrivals, [draw.integer(1, longest + 1) for _ in range(num)]


def spans_of(got: Any) -> Spans:
    if not isinstance(got, list | tuple) or any(not isinstance(span, list | tuple) or len(span) != 2 for span in got):
        reject(f"the result is {got!r}, expected a list of pairs (first, end)")
    return [(int(first), int(end)) for first, end in got]


def told(function: Any, oracle: Any, arrivals: list[int], lengths: list[int], num_slots: int) -> None:
    with unchanged(arrivals=arrivals, lengths=lengths):
        got = spans_of(function(arrivals, lengths, num_slots))
    expected = oracle(arrivals, lengths, num_slots)
    for request, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            reject(
                f"request {request} computes in [{one[0]}, {one[1]}), expected [{other[0]}, {other[1]})",
                f"arrivals {arrivals}, lengths {lengths}, {num_slots} slots",
                f"got      {got}",
                f"expected {expected}",
            )
    compare(len(got), len(expected), what="the number of spans")


# -- 4.2


def one_batch(answer: Any, draw: Draw, num: int) -> None:
    _, lengths = workload(draw, num, 0)
    told(answer.static_batching, static_oracle, [0] * num, lengths, num)


def waits_for_the_longest(answer: Any, draw: Draw, num_slots: int) -> None:
    _, lengths = workload(draw, 3 * num_slots + 1, 0)
    told(answer.static_batching, static_oracle, [0] * len(lengths), lengths, num_slots)


def takes_those_who_are_there(answer: Any, draw: Draw, spread: int, num: int = 8, num_slots: int = 3) -> None:
    arrivals, lengths = workload(draw, num, spread, longest=9 if num < 10 else 150)
    told(answer.static_batching, static_oracle, arrivals, lengths, num_slots)


def use_counts_tokens(answer: Any, draw: Draw, case: str) -> None:
    spans, num_slots = {
        "full": ([(0, 4), (0, 4)], 2),
        "half empty": ([(0, 4)], 2),
        "unequal": ([(0, 1), (0, 4), (4, 7)], 2),
        "starts late": ([(5, 9), (6, 9)], 2),
    }[case]
    tokens = sum(end - first for first, end in spans)
    start, stop = min(first for first, _ in spans), max(end for _, end in spans)
    compare(
        float(answer.slot_use(spans, num_slots)),
        tokens / (num_slots * (stop - start)),
        what=f"slot_use({spans}, {num_slots})",
    )


# -- 4.4


def fills_a_free_slot(answer: Any, draw: Draw, num_slots: int) -> None:
    _, lengths = workload(draw, 3 * num_slots + 1, 0)
    told(answer.iteration_level, iteration_oracle, [0] * len(lengths), lengths, num_slots)


def lets_them_join_late(answer: Any, draw: Draw, spread: int, num: int = 10, num_slots: int = 3) -> None:
    for _ in range(10):
        arrivals, lengths = workload(draw, num, spread, longest=9 if num < 20 else 150)
        told(answer.iteration_level, iteration_oracle, arrivals, lengths, num_slots)


def one_alone(answer: Any, draw: Draw, arrival: int) -> None:
    told(answer.iteration_level, iteration_oracle, [arrival], [draw.integer(2, 9)], 2)


def never_more_than_slots(answer: Any, draw: Draw) -> None:
    arrivals, lengths = workload(draw, 20, 6)
    got = spans_of(answer.iteration_level(list(arrivals), list(lengths), 3))
    for now in range(max(end for _, end in got)):
        at_work = [request for request, (first, end) in enumerate(got) if first <= now < end]
        if len(at_work) > 3:
            reject(f"in iteration {now} the requests {at_work} are at work, and there are 3 slots")


# -- 4.3


def static_use() -> float:
    lengths = drawn_lengths()
    spans = static_oracle([0] * len(lengths), lengths, NUM_SLOTS)
    return sum(lengths) / (NUM_SLOTS * max(end for _, end in spans))


EXERCISES = (
    Exercise(
        id="4.2",
        title="Static batching",
        kind="code",
        names=("static_batching", "slot_use"),
        points=2,
        minutes=8,
        lines=5,
        objective="say what request-level batching costs",
        hints=(
            "A batch is the requests that have arrived when it starts, oldest first, as many as there are slots.",
            "Each of them gets a token per iteration until it is done; the batch is done when its longest is.",
            "slot_use: iterations in which a request got a token, over all slot-iterations between the first start "
            "and the last end.",
        ),
        checks=(
            Property(
                "runs one batch",
                one_batch,
                "All start together, and each ends after as many iterations as it has tokens.",
                ({"num": 1}, {"num": 4}),
            ),
            Property(
                "waits for the longest of a batch",
                waits_for_the_longest,
                "The next batch starts when the last of this one has ended, and no batch is larger than the slots.",
                ({"num_slots": 1}, {"num_slots": 3}),
            ),
            Property(
                "takes those who are there",
                takes_those_who_are_there,
                "Who has not arrived when a batch starts waits for the next one. If nobody is there, the clock "
                "goes to the next arrival.",
                ({"spread": 4}, {"spread": 60}, {"spread": 3, "num": 150, "num_slots": 70}),
            ),
            Property(
                "counts tokens over slots",
                use_counts_tokens,
                "Tokens are the iterations inside the spans; the slots are there all the time, used or not.",
                ({"case": "full"}, {"case": "half empty"}, {"case": "unequal"}, {"case": "starts late"}),
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="4.3",
        title="The share that works",
        kind="prediction",
        names=("guess_4_3",),
        points=1,
        minutes=2,
        objective="predict the waste of static batching",
        hints=("Of eight lengths drawn from 1 to 200, how long is the longest, roughly? And the mean?",),
        question=Number(
            static_use,
            abs=0.08,
            hint="The batch lasts as long as its longest; the mean of 1 to 200 is half of 200.",
        ),
    ),
    Exercise(
        id="4.4",
        title="Iteration-level batching",
        kind="code",
        names=("iteration_level",),
        points=3,
        minutes=10,
        lines=6,
        difficulty=2,
        objective="let requests join and leave at every iteration",
        hints=(
            "Before each iteration: while there is a free slot and somebody has arrived, let them in.",
            "In the iteration everybody at work gets a token; who has none left to get leaves at its end.",
            "The iteration `now` lies in [now, now + 1): who gets its last token in it ends at now + 1.",
        ),
        checks=(
            Property(
                "runs one request",
                one_alone,
                "It starts when it arrives, and ends after as many iterations as it has tokens.",
                ({"arrival": 0}, {"arrival": 7}),
            ),
            Property(
                "fills a slot as soon as it is free",
                fills_a_free_slot,
                "Who ends in an iteration leaves its slot to the next in the queue, in the very next iteration.",
                ({"num_slots": 1}, {"num_slots": 3}),
            ),
            Property(
                "lets requests join while others run",
                lets_them_join_late,
                "A request starts at its arrival if a slot is free, whoever else is in the middle of an answer.",
                ({"spread": 5}, {"spread": 60}, {"spread": 3, "num": 150, "num_slots": 70}),
            ),
            Property("never uses more slots than there are", never_more_than_slots, "Count who is at work."),
        ),
        time_limit_s=10,
    ),
)
