"""8.13: which improvement a service needs."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_13 = exercise("8.13", "What would help most?", kind="matching", points=2, minutes=5, is_extra=True)
ANSWER_8_13.objective = "choose an improvement by the share of the time that it removes"
ANSWER_8_13.question = Matching(
    "abcde",
    {
        "agents": "82f42e0f6a724aca",
        "chat": "5c461497a9b82892",
        "completion": "c6fe9b323e9800ac",
        "documents": "e799e841e3113df3",
        "summaries": "e346d839bf457fcc",
    },
    hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
    "be worth less than a better one of the second largest.",
)
