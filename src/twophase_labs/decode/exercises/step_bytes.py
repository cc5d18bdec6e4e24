"""3.2 What a step reads, and how fast it can be at best."""

from typing import Any

from twophase_labs.decode.step_time import share_of_ceiling
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number


def model(draw: Draw) -> tuple[int, int, int]:
    """Weights, bytes of a weight, bytes of K and V per token."""
    return draw.integer(1, 80) * 10**9, draw.choice((1, 2, 4)), 1024 * draw.integer(8, 512)


def contexts(draw: Draw, num_sequences: int) -> list[int]:
    return [draw.integer(1, 5000), *(draw.integer(100_000, 3_000_000) for _ in range(num_sequences - 1))]


def reads_every_weight_once(answer: Any, draw: Draw, num_sequences: int) -> None:
    num_weights, _, per_token = model(draw)
    for width in (2, 1, 4):
        got = answer.bytes_per_step(num_weights, width, per_token, contexts(draw, num_sequences))
        if not isinstance(got, tuple | list) or len(got) != 2:
            reject(f"the result is {got!r}, expected a pair (weight bytes, K/V bytes)")
        what = f"the weight bytes of a step of {num_sequences} sequences ({num_weights:,} weights of {width} bytes)"
        compare(int(got[0]), num_weights * width, what=what)


def reads_every_context(answer: Any, draw: Draw, num_sequences: int) -> None:
    num_weights, width, per_token = model(draw)
    lengths = contexts(draw, num_sequences)
    expected = sum(length * per_token for length in lengths)
    got = answer.bytes_per_step(num_weights, width, per_token, list(lengths))[1]
    what = f"the K/V bytes of contexts {lengths[:4]}{' ...' if num_sequences > 4 else ''} at {per_token:,} each token"
    compare(int(got), expected, what=what)


def knows_the_example(answer: Any, draw: Draw) -> None:
    got = answer.bytes_per_step(7 * 10**9, 2, 524_288, [1000])
    compare([int(n) for n in got], [14_000_000_000, 524_288_000], what="7B in fp16, 1,000 tokens", axes=("place",))


def divides_by_the_bandwidth(answer: Any, draw: Draw, num_sequences: int) -> None:
    total, seconds = draw.integer(1, 200) * 10**9, draw.choice((0.01, 0.05, 0.2))
    got = answer.tokens_per_second(total, num_sequences, total / seconds)
    what = f"the ceiling of {num_sequences} sequences if a step takes {seconds} s"
    compare(float(got), num_sequences / seconds, what=what)


SEQUENCES = ({"num_sequences": 1}, {"num_sequences": 3}, {"num_sequences": 64}, {"num_sequences": 1500})

EXERCISES = (
    Exercise(
        id="3.2",
        title="Bytes of a step, and its ceiling",
        kind="code",
        names=("bytes_per_step", "tokens_per_second"),
        points=3,
        minutes=6,
        lines=4,
        objective="bound decoding by what it reads",
        hints=(
            "Which of the two numbers changes when a second sequence joins the step?",
            "A matrix is read once and multiplied with as many rows as there are sequences. "
            "A cache serves its own sequence only.",
            "A step takes bytes / bandwidth seconds, and gives every sequence one token.",
        ),
        checks=(
            Property(
                "reads every weight once",
                reads_every_weight_once,
                "Number of weights times bytes of a weight, however many sequences there are.",
                SEQUENCES,
            ),
            Property(
                "reads every sequence's own K and V",
                reads_every_context,
                "Each sequence has a cache of its own: the tokens of all contexts together.",
                SEQUENCES,
            ),
            Property("gives 14 GB and 0.52 GB", knows_the_example, "7 billion weights of 2 bytes; 1,000 tokens."),
            Property(
                "divides by the bandwidth",
                divides_by_the_bandwidth,
                "First the seconds of one step; in that time every sequence gets one token.",
                SEQUENCES,
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="3.3",
        title="How close to the ceiling?",
        kind="prediction",
        names=("guess_3_3",),
        points=1,
        minutes=3,
        objective="use a bound as a prediction",
        hints=(
            "Is a step of one sequence mostly something else than reading? The surprise at the top has both numbers.",
        ),
        question=Number(
            share_of_ceiling,
            factor=2.5,
            unit="%",
            hint="If reading were everything, 100. What does a step do besides: attention, sampling, Python?",
        ),
        needs=("model",),
        time_limit_s=120,
    ),
    Exercise(
        id="3.4",
        title="70 billion weights on one card",
        kind="numeric",
        names=("answer_3_4",),
        points=1,
        minutes=2,
        objective="read a data sheet as a speed limit",
        question=Number(
            lambda: 3.35e12 / (70e9 * 2),
            rel=0.02,
            unit="tokens per second",
            hint="bf16 is two bytes a weight. Forget K and V here.",
        ),
    ),
)
