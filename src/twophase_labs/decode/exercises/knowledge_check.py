"""3.14 to 3.16 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_3_14 = exercise("3.14", "What it waits for, what helps", kind="matching", points=2, minutes=3)
ANSWER_3_14.objective = "find a stage's bottleneck, and the remedy that fits it"
ANSWER_3_14.question = Matching(
    "abcde",
    {
        "projections, a prompt of 4,000 tokens": "a",
        "attention through a score matrix, a prompt of 4,000 tokens": "b",
        "projections, a step of 4 sequences": "c",
        "attention, a step of 64 sequences of 8,000 tokens": "d",
        "a step of SmolLM2 for one sequence, on an H100": "e",
    },
    hint="Count FLOPs and bytes of each: how many tokens share a byte of weights, of K and V, of the score matrix?",
)

ANSWER_3_15 = exercise("3.15", "Symptoms of a kernel", kind="matching", points=2, minutes=3)
ANSWER_3_15.objective = "tell kernel bugs by their symptoms"
ANSWER_3_15.question = Matching(
    "abcde",
    {
        "right for one KV head, wrong for several": "d",
        "right for lengths 16, 32, 48, wrong in between": "a",
        "every split right by itself, the merged result off": "e",
        "right alone, wrong for all but the first of a batch": "b",
        "NaN for the shortest sequence only, once there are splits": "c",
    },
    hint="Ask of each: which loop, index or mask is exercised in the wrong case and not in the right one?",
)

ANSWER_3_16 = exercise("3.16", "One change for a service", kind="choice", points=2, minutes=3)
ANSWER_3_16.objective = "choose an optimisation by what the step is made of"
ANSWER_3_16.question = Choice(
    "abcd",
    "c",
    {
        "a": "the weights are less than a fifth of what this step reads",
        "b": "every further sequence brings its own K and V: the step gets longer",
        "d": "there are 512 programs before any split; and splitting reads the same bytes",
    },
    hint="Count the bytes of a step: the weights once, K and V 64 times. Which part would have to shrink?",
)
