"""Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="5.18",
        title="Which technique?",
        kind="matching",
        names=("answer_5_18",),
        points=2,
        minutes=3,
        objective="choose a technique by workload",
        question=Matching(
            "abcde",
            {
                "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "4e9544f060047946",
                "one client, alone on the GPU, waits for an edit that repeats most of a file": "fbf27441e3172268",
                "answers are read by a program, and a missing bracket costs a retry": "bf85143b14ff1b0c",
                "a log is followed for weeks, and only its last hour matters": "ba00ae6e12ed7168",
                "one client, alone on the GPU, waits for a poem that repeats nothing": "18b50afe16f8f670",
            },
            hint="What does each workload have too much of: the same tokens, easy tokens, wrong tokens, old tokens, or "
            "idle arithmetic?",
        ),
    ),
    Exercise(
        id="5.19",
        was="5.29",
        title="A bad drafter",
        kind="choice",
        names=("answer_5_19",),
        points=1,
        minutes=2,
        objective="know what a drafter can and cannot change",
        question=Choice(
            "abcd",
            "ed5bc8eba11021ea",
            {
                "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
                "b": "the temperature changes both distributions, and the rule holds for any two of them",
                "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
            },
            hint="What decides whether a draft stays, and what is put in its place?",
        ),
    ),
    Exercise(
        id="5.20",
        title="Symptoms",
        kind="matching",
        names=("answer_5_20",),
        points=2,
        minutes=3,
        objective="tell troubles of the whole lab by their symptoms",
        question=Matching(
            "abcde",
            {
                "greedy text changes when drafts are switched on": "c6a492aed7669b19",
                "one tenant's first tokens are faster right after another one asked the same": "743ee19d964c1a21",
                "fluent answers turn into noise some thousand tokens on": "da76c2435a529eab",
                "valid JSON up to a point, and then nothing": "dcc80f850b8c44c2",
                "at temperature 1, words that the drafter likes come more often than without it": "fafb28b78846496e",
            },
            hint="Which of the five has to do with positions, which with shares of probability, and which with blocks "
            "that two tenants use?",
        ),
    ),
)
