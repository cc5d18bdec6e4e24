"""Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_5_13 = exercise("5.13", "A bad drafter", kind="choice", points=1, minutes=2)
ANSWER_5_13.objective = "know what a drafter can and cannot change"
ANSWER_5_13.question = Choice(
    "abcd",
    "692248befe1583c0",
    {
        "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
        "b": "the temperature changes both distributions, and the rule holds for any two of them",
        "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
    },
    hint="What decides whether a draft stays, and what is put in its place?",
)

ANSWER_5_14 = exercise("5.14", "Symptoms", kind="matching", points=2, minutes=3)
ANSWER_5_14.objective = "tell troubles of the whole lab by their symptoms"
ANSWER_5_14.question = Matching(
    "abcde",
    {
        "greedy text changes when drafts are switched on": "5625f2292a4c6456",
        "one tenant's first tokens are faster right after another one asked the same": "40b94a73aec944d9",
        "fluent answers turn into noise after a few thousand tokens": "cadbfe13bec0f50d",
        "valid JSON up to a point, and then nothing": "bb4a60f91cebc224",
        "at temperature 1, words that the drafter likes come more often than without it": "10da54b27cf3d86f",
    },
    hint="Which of the five has to do with positions, which with shares of probability, and which with blocks "
    "that two tenants use?",
)
