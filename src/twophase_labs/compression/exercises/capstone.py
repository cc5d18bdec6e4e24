"""6.10: how many of the capstone's variants pass the gate."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_6_10 = exercise("6.10", "What passes?", kind="prediction", points=1, minutes=3)
GUESS_6_10.objective = "expect from what was measured so far which variants a gate lets through"
GUESS_6_10.hints = ("Which of the four moves the weights least, and why (section 3)?",)
GUESS_6_10.question = Number(lambda: 1, abs=0, rel=0, unit="of the four", hint="A number from 0 to 4.")
