"""8.13: which improvement a service needs."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_13 = exercise("8.13", "What would help most?", kind="matching", points=2, minutes=5, is_extra=True)
ANSWER_8_13.objective = "choose an improvement by the share of the time that it removes"
ANSWER_8_13.question = Matching(
    "abcde",
    {
        "agents": "b",
        "chat": "d",
        "completion": "e",
        "documents": "a",
        "summaries": "c",
    },
    hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
    "be worth less than a better one of the second largest.",
)
