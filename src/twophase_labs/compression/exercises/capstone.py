"""6.18: how many of the capstone's variants pass the gate."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number

EXERCISES = (
    Exercise(
        id="6.18",
        title="What passes?",
        kind="prediction",
        names=("guess_6_18",),
        points=1,
        minutes=2,
        objective="expect from what was measured so far which variants a gate lets through",
        hints=("Which of the four moves the weights least, and why (section 3)?",),
        question=Number(lambda: 1, abs=0, rel=0, unit="of the four", hint="A number from 0 to 4."),
    ),
)
