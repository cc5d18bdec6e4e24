"""8.13: three questions over metrics, alerts and a canary."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_13 = exercise("8.13", "Three calls at night", kind="matching", points=3, minutes=7)
ANSWER_8_13.objective = "find what a number does not show"
ANSWER_8_13.question = Matching(
    "abcd",
    {"slow": "11b398b317943594", "dead": "9d978a4d2f2519ee", "canary": "cb356df3ca2f0f11"},
    hint="Ask of each number: which requests does it count, from which moment on, and what does it show when "
    "there is little or nothing to show?",
)
