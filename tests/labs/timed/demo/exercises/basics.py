"""Exercises of `demo` with other numbers, and a new one."""

from dataclasses import replace

from tests.labs.demo.demo.exercises import basics
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Number

HINTS = ("A sum.", "And a division.", "Sum, then divide:\n    totals = ...\n    return totals / ...")

GUESS = replace(basics.GUESS_1_4, id="1.1", names=("guess_1_1",))
MEAN = replace(basics.MEAN, id="1.2", hints=HINTS)
CENTRED = replace(basics.CENTRED, uses=("1.2",), hints=HINTS)
COUNTER = replace(basics.COUNTER, id="1.4")
COST = replace(
    basics.ANSWER_1_2,
    id="1.5",
    names=("answer_1_5",),
    question=Choice("abc", "b", {}),
    is_extra=True,
)

ANSWER_1_6 = exercise("1.6", "Means of 64 values", kind="numeric", points=1, minutes=1)
ANSWER_1_6.objective = "new"
ANSWER_1_6.question = Number(lambda: 128, rel=0)
