"""7.11: a question over the whole lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice

ANSWER_7_11 = exercise("7.11", "Eight cards, one service", kind="choice", points=2, minutes=3)
ANSWER_7_11.objective = "choose an arrangement by what is slow"
ANSWER_7_11.question = Choice(
    "abcd",
    "b",
    {
        "a": "its one cache would hold all 40 instructions, but with 64 all-reduces in every step eight cards "
        "finish fewer tokens per second than as eight engines, and shorter steps are not what is missing",
        "c": "stages shorten neither prompts nor decodes of one request, and the same prompts are computed",
        "d": "round robin spreads 40 instructions over all prefill caches, and half of the cards hold none",
    },
    hint="What makes a first token late here? How much of each prompt has been computed before, and where?",
)
