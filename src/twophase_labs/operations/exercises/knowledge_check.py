"""8.20: three questions over metrics, alerts and a canary."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Matching

EXERCISES = (
    Exercise(
        id="8.20",
        title="Three calls at night",
        kind="matching",
        names=("answer_8_20",),
        points=3,
        minutes=5,
        objective="find what a number does not show",
        question=Matching(
            "abcd",
            {"slow": "6d4f39099530c2e6", "dead": "3c56fa7f5e5ce701", "canary": "3201d748d6dfbe88"},
            hint="Ask of each number: which requests does it count, from which moment on, and what does it show when "
            "there is little or nothing to show?",
        ),
    ),
)
