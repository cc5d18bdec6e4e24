"""6.18: how many of the capstone's variants pass the gate."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_6_18 = exercise("6.18", "What passes?", kind="prediction", points=1, minutes=2)
GUESS_6_18.objective = "expect from what was measured so far which variants a gate lets through"
GUESS_6_18.hints = ("Which of the four moves the weights least, and why (section 3)?",)
GUESS_6_18.question = Number(lambda: 1, abs=0, rel=0, unit="of the four", hint="A number from 0 to 4.")
