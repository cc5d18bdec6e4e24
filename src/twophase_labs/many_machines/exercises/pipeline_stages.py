"""7.4: stages in a row: pipeline parallelism."""

from itertools import pairwise
from typing import Any

from twophase_labs.machine.checks import Draw, compare, listed, reject, unchanged
from twophase_labs.machine.exercise import exercise

PIPELINE = exercise("7.7", "Bubbles", "run_pipeline", points=3, minutes=12, lines=10, difficulty=2, time_limit_s=10)
PIPELINE.objective = "play a pipeline, and see where it stands idle"
PIPELINE.hints = (
    "A chunk can start in a stage when two things are true. Each of them has a time at which it becomes true.",
    "In the first stage a chunk is there from the beginning; in another one, when the stage before has ended it. "
    "And a stage is free when it has ended the chunk before.",
    "spans = []\n"
    "for stage, row in enumerate(seconds):\n"
    "    free_s, spans_here = 0.0, []\n"
    "    for chunk, length_s in enumerate(row):\n"
    "        there_s = ... if stage else 0.0\n"
    "        start_s = ...\n"
    "        free_s = ...\n"
    "        spans_here.append((start_s, free_s))\n"
    "    spans.append(spans_here)",
)

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


@PIPELINE.check("waits for the stage before", num_stages=(1, 2, 4))
def waits_for_the_stage_before(answer: Any, draw: Draw, num_stages: int) -> None:
    """A chunk starts in a stage when it has *ended* in the stage before."""
    follows(answer, [[float(draw.integer(1, 9))] for _ in range(num_stages)])


@PIPELINE.check("has one chunk in a stage at a time", num_chunks=(2, 5))
def one_at_a_time(answer: Any, draw: Draw, num_chunks: int) -> None:
    """A stage that is busy makes the next chunk wait, in every stage, not in the first alone."""
    # In a single stage, and in a second stage that is slower than the first, so that chunks pile up before it.
    first = [float(draw.integer(1, 9)) for _ in range(num_chunks)]
    follows(answer, [first])
    seconds = [first, [max(first) + draw.integer(1, 9) for _ in range(num_chunks)]]
    for stage, row in enumerate(played(answer, seconds)):
        for chunk, ((_, end), (start, _)) in enumerate(pairwise(row)):
            if start < end:
                what = f"stage {stage} begins with chunk {chunk + 1} at {start:g}, but has chunk {chunk} until {end:g}"
                reject(what, f"of seconds {seconds}")


@PIPELINE.check("plays any pipeline", num_stages=(2, 3, 5, 70, 2), num_chunks=(2, 5, 3, 2, 70))
def any_pipeline(answer: Any, draw: Draw, num_stages: int, num_chunks: int) -> None:
    """Both conditions at once: the later of the two times. Chunks and stages may differ in length."""
    for _ in range(2):
        follows(answer, [[draw.integer(0, 36) / 4 for _ in range(num_chunks)] for _ in range(num_stages)])


@PIPELINE.check("starts afresh each time")
def leaves_its_input_alone(answer: Any, draw: Draw) -> None:
    """The second pipeline has times of its own: is something kept from the first?"""
    # Two runs of the same object: the state of one must not serve the next.
    seconds = [[float(draw.integer(1, 9)) for _ in range(3)] for _ in range(2)]
    follows(answer, seconds)
    follows(answer, [[each + 1 for each in row] for row in seconds])
