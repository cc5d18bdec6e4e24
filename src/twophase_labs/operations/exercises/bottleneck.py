"""8.12: which improvement a service needs."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_12 = exercise("8.12", "What would help most?", kind="matching", points=2, minutes=5, is_extra=True)
ANSWER_8_12.objective = "choose an improvement by the share of the time that it removes"
ANSWER_8_12.question = Matching(
    "abcde",
    {
        "agents": "cd5bc98a05c450e3",
        "chat": "8b2ba1a9a2cda421",
        "completion": "ec7fb0e0bf15848c",
        "documents": "1f05180f187d0f78",
        "summaries": "f90dd1154947679a",
    },
    hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
    "be worth less than a better one of the second largest.",
)
