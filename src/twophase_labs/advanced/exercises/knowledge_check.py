"""Knowledge check."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="5.13",
        title="Which technique?",
        kind="matching",
        names=("answer_5_13",),
        points=2,
        minutes=3,
        objective="choose a technique by workload",
        question=Matching(
            "abcde",
            {
                "ten thousand requests, all beginning with the same 3,000 tokens of instructions": "e1ef5fad3a99a01f",
                "one client, alone on the GPU, waits for an edit that repeats most of a file": "3d8a1b334b672968",
                "answers are read by a program, and a missing bracket costs a retry": "284cae4c978421c8",
                "a log is followed for weeks, and only its last hour matters": "265d729bc59a412f",
                "one client, alone on the GPU, waits for a poem that repeats nothing": "72f7315822de81a0",
            },
            hint="What does each workload have too much of: the same tokens, easy tokens, wrong tokens, old tokens, or "
            "idle arithmetic?",
        ),
    ),
    Exercise(
        id="5.14",
        was="5.29",
        title="A bad drafter",
        kind="choice",
        names=("answer_5_14",),
        points=1,
        minutes=2,
        objective="know what a drafter can and cannot change",
        question=Choice(
            "abcd",
            "c8cc591ddde5231c",
            {
                "a": "rejection sampling replaces what is rejected by a draw from what is left of the target",
                "b": "the temperature changes both distributions, and the rule holds for any two of them",
                "c": "that would be so if drafts were taken unseen; each is held against the target's probability",
            },
            hint="What decides whether a draft stays, and what is put in its place?",
        ),
    ),
    Exercise(
        id="5.15",
        title="Symptoms",
        kind="matching",
        names=("answer_5_15",),
        points=2,
        minutes=3,
        objective="tell troubles of the whole lab by their symptoms",
        question=Matching(
            "abcde",
            {
                "greedy text changes when drafts are switched on": "5fb2b91615aabd79",
                "one tenant's first tokens are faster right after another one asked the same": "dc663af0f74752c5",
                "fluent answers turn into noise some thousand tokens on": "595209c27b5afa41",
                "valid JSON up to a point, and then nothing": "0d5cd1dae65648ec",
                "at temperature 1, words that the drafter likes come more often than without it": "ff8ebd7e65186a13",
            },
            hint="Which of the five has to do with positions, which with shares of probability, and which with blocks "
            "that two tenants use?",
        ),
    ),
)
