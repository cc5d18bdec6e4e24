"""8.14: three questions over metrics, alerts and a canary."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_14 = exercise("8.14", "Three calls at night", kind="matching", points=3, minutes=7)
ANSWER_8_14.objective = "find what a number does not show"
ANSWER_8_14.question = Matching(
    "abcd",
    {"slow": "b", "dead": "c", "canary": "c"},
    hint="Ask of each number: which requests does it count, from which moment on, and what does it show when "
    "there is little or nothing to show?",
)
