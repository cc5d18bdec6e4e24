"""Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_5_11 = exercise("5.11", "A bad drafter", kind="choice", points=1, minutes=2)
ANSWER_5_11.objective = "know what a drafter can and cannot change"
ANSWER_5_11.question = Choice(
    "abcd",
    "d",
    {
        "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
        "b": "the temperature changes both distributions, and the rule holds for any two of them",
        "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
    },
    hint="What decides whether a draft stays, and what is put in its place?",
)

ANSWER_5_12 = exercise("5.12", "Symptoms", kind="matching", points=2, minutes=3)
ANSWER_5_12.objective = "tell troubles of the whole lab by their symptoms"
ANSWER_5_12.question = Matching(
    "abcdefg",
    {
        "greedy text changes when drafts are switched on": "c",
        "one tenant's first tokens are faster right after another one asked the same": "e",
        "fluent answers turn into noise after a few thousand tokens": "a",
        "valid JSON up to a point, and then nothing": "b",
        "at temperature 1, words that the drafter likes come more often than without it": "d",
        "with a tree of drafts, greedy text changes; with a chain it does not": "f",
    },
    hint="Which of them has to do with positions, which with shares of probability, and which with blocks "
    "that two tenants use?",
)
