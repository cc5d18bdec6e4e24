"""8.15: three questions over the server, its metrics and its alerts."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Matching

EXERCISES = (
    Exercise(
        id="8.15",
        title="Three calls at night",
        kind="matching",
        names=("answer_8_15",),
        points=3,
        minutes=5,
        objective="find what a dashboard does not show",
        question=Matching(
            "abcd",
            {"slow": "b0ea47197847eb04", "dead": "dccf54e27a5cd79b", "quota": "88adc4cc76756cfb"},
            hint="Ask of each number on the dashboard: which requests does it count, from which moment on, and what "
            "does it show when there is nothing to show?",
        ),
    ),
)
