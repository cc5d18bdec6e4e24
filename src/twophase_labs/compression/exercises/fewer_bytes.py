"""6.1: how much faster a model of 4-bit weights writes."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number


def speedup() -> float:
    from twophase_labs.compression.step_bytes import faster_in_4_bits

    return faster_in_4_bits()


GUESS_6_1 = exercise(
    "6.1", "How much faster in 4 bits?", kind="prediction", points=1, minutes=3, needs=("model",), time_limit_s=120
)
GUESS_6_1.objective = "expect a step's time from the bytes that it reads"
GUESS_6_1.hints = (
    "Look at the table: how many GB does a step of SmolLM2 read in float32, and how many with 4 bits in groups of "
    "32? Which matrix stays in 16 bits? And what does a step do besides reading (lab 3)?",
)
GUESS_6_1.question = Number(
    speedup,
    factor=1.3,
    unit="times",
    hint="Bytes over bytes is an upper limit; the fixed price of a step does not shrink with them.",
)
