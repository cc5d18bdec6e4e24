"""Exercises of `demo` with other numbers, and a new one."""

from dataclasses import replace

from tests.labs.demo.demo.exercises import basics
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Number

BEFORE = {exercise.id: exercise for exercise in basics.EXERCISES}

HINTS = ("A sum.", "And a division.", "Sum, then divide:\n    totals = ...\n    return totals / ...")

EXERCISES = (
    replace(BEFORE["1.4"], id="1.1", names=("guess_1_1",)),
    replace(BEFORE["1.1"], id="1.2", hints=HINTS),
    replace(BEFORE["1.3"], uses=("1.2",), hints=HINTS),
    replace(BEFORE["1.8"], id="1.4"),
    replace(
        BEFORE["1.2"],
        id="1.5",
        names=("answer_1_5",),
        question=Choice("abc", "54f93ede61bd3fd0", {}),
        is_extra=True,
    ),
    Exercise(
        id="1.6",
        title="Means of 64 values",
        kind="numeric",
        names=("answer_1_6",),
        points=1,
        minutes=1,
        objective="new",
        question=Number(lambda: 128, rel=0),
    ),
)
