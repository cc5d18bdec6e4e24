"""8.19: which improvement a service needs."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Matching

ANSWER_8_19 = exercise("8.19", "What would help most?", kind="matching", points=2, minutes=4)
ANSWER_8_19.objective = "choose an improvement by the share of the time that it removes"
ANSWER_8_19.question = Matching(
    "abcde",
    {
        "agents": "00c8d4eedbe4a272",
        "chat": "bf1d21eeb3b9b554",
        "completion": "2da7470cfcf2ad61",
        "documents": "a2d234530184088a",
        "summaries": "ee4569c1e5a9c245",
    },
    hint="Of each row: what is left of its sum with each improvement? An improvement of the largest part may "
    "be worth less than a better one of the second largest.",
)
