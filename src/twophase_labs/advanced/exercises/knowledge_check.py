"""Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="5.14",
        title="Which technique?",
        kind="matching",
        names=("answer_5_14",),
        points=2,
        minutes=3,
        objective="choose a technique by workload",
        question=Matching(
            "abcde",
            {
                "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "b9cb6dcf3462c248",
                "one client, alone on the GPU, waits for an edit that repeats most of a file": "0d792efab559a89b",
                "answers are read by a program, and a missing bracket costs a retry": "8540198b970884bc",
                "a log is followed for weeks, and only its last hour matters": "a69e108f28bced6f",
                "one client, alone on the GPU, waits for a poem that repeats nothing": "debc532d357b771f",
            },
            hint="What does each workload have too much of: the same tokens, easy tokens, wrong tokens, old tokens, or "
            "idle arithmetic?",
        ),
    ),
    Exercise(
        id="5.15",
        was="5.29",
        title="A bad drafter",
        kind="choice",
        names=("answer_5_15",),
        points=1,
        minutes=2,
        objective="know what a drafter can and cannot change",
        question=Choice(
            "abcd",
            "7eb81d5d94aeb095",
            {
                "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
                "b": "the temperature changes both distributions, and the rule holds for any two of them",
                "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
            },
            hint="What decides whether a draft stays, and what is put in its place?",
        ),
    ),
    Exercise(
        id="5.16",
        title="Symptoms",
        kind="matching",
        names=("answer_5_16",),
        points=2,
        minutes=3,
        objective="tell troubles of the whole lab by their symptoms",
        question=Matching(
            "abcde",
            {
                "greedy text changes when drafts are switched on": "4c75b62fb1d7ea34",
                "one tenant's first tokens are faster right after another one asked the same": "2843ce3344c8039e",
                "fluent answers turn into noise some thousand tokens on": "93c4c43ffe6773be",
                "valid JSON up to a point, and then nothing": "af7b07549946567f",
                "at temperature 1, words that the drafter likes come more often than without it": "e8ddb9f3abde1c48",
            },
            hint="Which of the five has to do with positions, which with shares of probability, and which with blocks "
            "that two tenants use?",
        ),
    ),
)
