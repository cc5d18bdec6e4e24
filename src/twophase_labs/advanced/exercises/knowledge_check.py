"""Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_5_17 = exercise("5.17", "Which technique?", kind="matching", points=2, minutes=3)
ANSWER_5_17.objective = "choose a technique by workload"
ANSWER_5_17.question = Matching(
    "abcde",
    {
        "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "8cb31a6c2862b3f6",
        "one client, alone on the GPU, waits for an edit that repeats most of a file": "259e924ff6dd7da8",
        "answers are read by a program, and a missing bracket costs a retry": "6bccd0bdf6b9f1af",
        "a log is followed for weeks, and only its last hour matters": "850851c37c9d0f8e",
        "one client, alone on the GPU, waits for a poem that repeats nothing": "d6d378ed72f96b2b",
    },
    hint="What does each workload have too much of: the same tokens, easy tokens, wrong tokens, old tokens, or "
    "idle arithmetic?",
)

ANSWER_5_18 = exercise("5.18", "A bad drafter", kind="choice", points=1, minutes=2)
ANSWER_5_18.objective = "know what a drafter can and cannot change"
ANSWER_5_18.question = Choice(
    "abcd",
    "b8c2207c72b308a2",
    {
        "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
        "b": "the temperature changes both distributions, and the rule holds for any two of them",
        "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
    },
    hint="What decides whether a draft stays, and what is put in its place?",
)

ANSWER_5_19 = exercise("5.19", "Symptoms", kind="matching", points=2, minutes=3)
ANSWER_5_19.objective = "tell troubles of the whole lab by their symptoms"
ANSWER_5_19.question = Matching(
    "abcde",
    {
        "greedy text changes when drafts are switched on": "4ad62bcfb0b043aa",
        "one tenant's first tokens are faster right after another one asked the same": "acadced7dc8e9546",
        "fluent answers turn into noise after a few thousand tokens": "d0596fbdd6688058",
        "valid JSON up to a point, and then nothing": "22eec9b9625040c8",
        "at temperature 1, words that the drafter likes come more often than without it": "3e20b7e782a0d8ae",
    },
    hint="Which of the five has to do with positions, which with shares of probability, and which with blocks "
    "that two tenants use?",
)
