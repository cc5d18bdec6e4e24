"""8.20: three questions over metrics, alerts and a canary."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_20 = exercise("8.20", "Three calls at night", kind="matching", points=3, minutes=5)
ANSWER_8_20.objective = "find what a number does not show"
ANSWER_8_20.question = Matching(
    "abcd",
    {"slow": "6d4f39099530c2e6", "dead": "3c56fa7f5e5ce701", "canary": "3201d748d6dfbe88"},
    hint="Ask of each number: which requests does it count, from which moment on, and what does it show when "
    "there is little or nothing to show?",
)
