"""8.19: which improvement a service needs."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Matching

EXERCISES = (
    Exercise(
        id="8.19",
        title="What would help most?",
        kind="matching",
        names=("answer_8_19",),
        points=2,
        minutes=4,
        objective="choose an improvement by the share of the time that it removes",
        question=Matching(
            "abcde",
            {
                "agents": "999a63d0b449f4c0",
                "chat": "43c0015c4e72b0bc",
                "completion": "571e7d7926019904",
                "documents": "361bfd68e9af463d",
                "labels": "b24ba5c5edea30a0",
            },
            hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
            "be worth less than a better one of the second largest.",
        ),
    ),
)
