"""9.1: what the prefix store saves."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_9_1 = exercise("9.1", "Found, not computed", kind="prediction", points=1, minutes=5)
GUESS_9_1.objective = "expect from a workload what prefix caching will save"
GUESS_9_1.question = Number(
    lambda: 78,
    abs=8,
    rel=0,
    unit="per cent",
    hint="How many requests begin with the handbook? The first computes it, and each has some tokens of its own.",
)
