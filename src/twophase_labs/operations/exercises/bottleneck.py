"""8.14: which improvement a service needs."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Matching

EXERCISES = (
    Exercise(
        id="8.14",
        title="What would help most?",
        kind="matching",
        names=("answer_8_14",),
        points=2,
        minutes=5,
        objective="choose an improvement by the share of the time that it removes",
        question=Matching(
            "abcde",
            {
                "agents": "aa569e4aed116113",
                "chat": "d88492c06a1a499b",
                "completion": "73abcd147e01a60b",
                "documents": "65c171394fce666e",
                "labels": "2b11abd42def893f",
            },
            hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
            "be worth less than a better one of the second largest.",
        ),
    ),
)
