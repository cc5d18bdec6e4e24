"""7.4: stages in a row: pipeline parallelism."""

from itertools import pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.many_machines.listed import listed

Spans = list[list[tuple[float, float]]]


def timetable(seconds: list[list[float]]) -> Spans:
    """An oracle that works the other way round: a chunk's end is the longest way to it through what must be before."""
    num_stages, num_chunks = len(seconds), len(seconds[0])

    def longest(stage: int, chunk: int) -> float:
        ways = [0.0]
        if stage:
            ways.append(ends[stage - 1, chunk])
        if chunk:
            ways.append(ends[stage, chunk - 1])
        return max(ways) + seconds[stage][chunk]

    ends: dict[tuple[int, int], float] = {}
    for chunk in range(num_chunks):
        for stage in range(num_stages):
            ends[stage, chunk] = longest(stage, chunk)
    return [[(ends[s, c] - seconds[s][c], ends[s, c]) for c in range(num_chunks)] for s in range(num_stages)]


def played(answer: Any, seconds: list[list[float]]) -> Spans:
    with unchanged(seconds=seconds):
        spans = listed(answer.run_pipeline(seconds))
    if not isinstance(spans, list | tuple) or len(spans) != len(seconds):
        reject(f"run_pipeline must return a list for each of the {len(seconds)} stages; it returned {spans!r}")
    for stage, row in enumerate(spans):
        if len(row) != len(seconds[stage]):
            reject(f"stage {stage} has {len(row)} spans for {len(seconds[stage])} chunks")
    return [[(float(start), float(end)) for start, end in row] for row in spans]


def follows(answer: Any, seconds: list[list[float]]) -> None:
    got, expected = played(answer, seconds), timetable(seconds)
    for stage, row in enumerate(expected):
        for chunk, span in enumerate(row):
            what = f"(start, end) of chunk {chunk} in stage {stage}, of seconds {seconds},"
            compare(got[stage][chunk], span, what=what)


def waits_for_the_stage_before(answer: Any, draw: Draw, num_stages: int) -> None:
    follows(answer, [[float(draw.integer(1, 9))] for _ in range(num_stages)])


def one_at_a_time(answer: Any, draw: Draw, num_chunks: int) -> None:
    """In a single stage, and in a second stage that is slower than the first, so that chunks pile up before it."""
    first = [float(draw.integer(1, 9)) for _ in range(num_chunks)]
    follows(answer, [first])
    seconds = [first, [max(first) + draw.integer(1, 9) for _ in range(num_chunks)]]
    for stage, row in enumerate(played(answer, seconds)):
        for chunk, ((_, end), (start, _)) in enumerate(pairwise(row)):
            if start < end:
                what = f"stage {stage} begins with chunk {chunk + 1} at {start:g}, but has chunk {chunk} until {end:g}"
                reject(what, f"of seconds {seconds}")


def any_pipeline(answer: Any, draw: Draw, num_stages: int, num_chunks: int) -> None:
    for _ in range(2):
        follows(answer, [[draw.integer(0, 36) / 4 for _ in range(num_chunks)] for _ in range(num_stages)])


def leaves_its_input_alone(answer: Any, draw: Draw) -> None:
    """Two runs of the same object: the state of one must not serve the next."""
    seconds = [[float(draw.integer(1, 9)) for _ in range(3)] for _ in range(2)]
    follows(answer, seconds)
    follows(answer, [[each + 1 for each in row] for row in seconds])


EXERCISES = (
    Exercise(
        id="7.7",
        title="Bubbles",
        kind="code",
        names=("run_pipeline",),
        points=3,
        minutes=12,
        lines=10,
        difficulty=2,
        objective="play a pipeline, and see where it stands idle",
        hints=(
            "A chunk can start in a stage when two things are true. Each of them has a time at which it becomes true.",
            "In the first stage a chunk is there from the beginning; in another one, when the stage before has ended "
            "it. And a stage is free when it has ended the chunk before.",
            "spans = []\n"
            "for stage, row in enumerate(seconds):\n"
            "    free_s, spans_here = 0.0, []\n"
            "    for chunk, length_s in enumerate(row):\n"
            "        there_s = ... if stage else 0.0\n"
            "        start_s = ...\n"
            "        free_s = ...\n"
            "        spans_here.append((start_s, free_s))\n"
            "    spans.append(spans_here)",
        ),
        checks=(
            Property(
                "waits for the stage before",
                waits_for_the_stage_before,
                "A chunk starts in a stage when it has *ended* in the stage before.",
                ({"num_stages": 1}, {"num_stages": 2}, {"num_stages": 4}),
            ),
            Property(
                "has one chunk in a stage at a time",
                one_at_a_time,
                "A stage that is busy makes the next chunk wait, in every stage, not in the first alone.",
                ({"num_chunks": 2}, {"num_chunks": 5}),
            ),
            Property(
                "plays any pipeline",
                any_pipeline,
                "Both conditions at once: the later of the two times. Chunks and stages may differ in length.",
                (
                    {"num_stages": 2, "num_chunks": 2},
                    {"num_stages": 3, "num_chunks": 5},
                    {"num_stages": 5, "num_chunks": 3},
                    {"num_stages": 70, "num_chunks": 2},
                    {"num_stages": 2, "num_chunks": 70},
                ),
            ),
            Property(
                "starts afresh each time",
                leaves_its_input_alone,
                "The second pipeline has times of its own: is something kept from the first?",
            ),
        ),
        time_limit_s=10,
    ),
)
