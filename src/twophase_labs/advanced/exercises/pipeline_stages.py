"""5.8 Stages in a row, and pools side by side."""

from typing import Any

from twophase_labs.advanced.plan_pools import best_split
from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number

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
        spans = answer.run_pipeline(seconds)
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
    follows(answer, [[float(draw.integer(1, 9)) for _ in range(num_chunks)]])


def any_pipeline(answer: Any, draw: Draw, num_stages: int, num_chunks: int) -> None:
    for _ in range(2):
        follows(answer, [[draw.integer(0, 36) / 4 for _ in range(num_chunks)] for _ in range(num_stages)])


def share_of_equal_chunks(answer: Any, draw: Draw, num_stages: int, num_chunks: int) -> None:
    length = draw.integer(1, 5) / 4
    spans = timetable([[length] * num_chunks] * num_stages)
    expected = (num_stages - 1) / (num_chunks + num_stages - 1)
    compare(
        answer.bubble_share(spans),
        expected,
        what=f"the bubble of {num_chunks} equal chunks in {num_stages} stages",
    )


def share_of_any(answer: Any, draw: Draw, num_stages: int, num_chunks: int, late_s: float = 0.0) -> None:
    """With `late_s` nothing starts at 0, and all are idle until then."""
    for _ in range(2):
        seconds = [[float(draw.integer(1, 9)) for _ in range(num_chunks)] for _ in range(num_stages)]
        spans = [[(start + late_s, end + late_s) for start, end in row] for row in timetable(seconds)]
        makespan = max(end for row in spans for _, end in row)
        expected = 1 - sum(map(sum, seconds)) / (num_stages * makespan)
        compare(answer.bubble_share(spans), expected, what=f"the bubble for seconds {seconds}, begun at {late_s},")


EXERCISES = (
    Exercise(
        id="5.24",
        title="Bubbles",
        kind="code",
        names=("run_pipeline", "bubble_share"),
        points=3,
        minutes=10,
        lines=5,
        difficulty=2,
        objective="play a pipeline, and measure what stands idle",
        hints=(
            "A chunk can start when two things are true. Each of them has a time at which it becomes true.",
            "In the first stage a chunk is there from the beginning; in another one, when the one before has ended it.",
            "All stages exist for the whole time: num_stages * makespan is what could have been worked.",
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
                "The next chunk waits until the stage is free.",
                ({"num_chunks": 2}, {"num_chunks": 5}),
            ),
            Property(
                "plays any pipeline",
                any_pipeline,
                "Both conditions at once: the later of the two times is the start.",
                (
                    {"num_stages": 2, "num_chunks": 2},
                    {"num_stages": 3, "num_chunks": 4},
                    {"num_stages": 5, "num_chunks": 9},
                    {"num_stages": 12, "num_chunks": 70},
                ),
            ),
            Property(
                "finds (p - 1) / (m + p - 1) for equal chunks",
                share_of_equal_chunks,
                "Idle time over all time, from 0 to the end of the last chunk, of all stages.",
                (
                    {"num_stages": 1, "num_chunks": 3},
                    {"num_stages": 4, "num_chunks": 1},
                    {"num_stages": 4, "num_chunks": 8},
                ),
            ),
            Property(
                "finds the share of any timetable",
                share_of_any,
                "Add up what was worked; stages may be idle at the start, at the end and in between.",
                (
                    {"num_stages": 2, "num_chunks": 3},
                    {"num_stages": 4, "num_chunks": 5},
                    {"num_stages": 3, "num_chunks": 2, "late_s": 2.5},
                    {"num_stages": 70, "num_chunks": 2},
                ),
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="5.25",
        title="How many should read?",
        kind="prediction",
        names=("guess_5_25",),
        points=1,
        minutes=4,
        objective="size a prefill pool from a rate",
        question=Number(
            best_split,
            rel=0,
            unit="engines",
            hint="How many prompts arrive while one is read? That many engines are busy reading, on average.",
        ),
        time_limit_s=60,
    ),
)
