"""3.14 to 3.16 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_3_14 = exercise("3.14", "What it waits for, what helps", kind="matching", points=2, minutes=3)
ANSWER_3_14.objective = "find a stage's bottleneck, and the remedy that fits it"
ANSWER_3_14.question = Matching(
    "abcde",
    {
        "projections, a prompt of 4,000 tokens": "a5c9ec1301b48998",
        "attention through a score matrix, a prompt of 4,000 tokens": "36a2e8512acb419d",
        "projections, a step of 4 sequences": "c93f26a23af5a315",
        "attention, a step of 64 sequences of 8,000 tokens": "961c64f1e70805e9",
        "a step of SmolLM2 for one sequence, on an H100": "370818ee67a5f971",
    },
    hint="Count FLOPs and bytes of each: how many tokens share a byte of weights, of K and V, of the score matrix?",
)

ANSWER_3_15 = exercise("3.15", "Symptoms of a kernel", kind="matching", points=2, minutes=3)
ANSWER_3_15.objective = "tell kernel bugs by their symptoms"
ANSWER_3_15.question = Matching(
    "abcde",
    {
        "right for one KV head, wrong for several": "2ff71df7b47b24ea",
        "right for lengths 16, 32, 48, wrong in between": "c14682990c7bb1dd",
        "every split right by itself, the merged result off": "2637be700e81236e",
        "right alone, wrong for all but the first of a batch": "88ff8a571beb7e80",
        "NaN for the shortest sequence only, once there are splits": "12151a265aab097a",
    },
    hint="Ask of each: which loop, index or mask is exercised in the wrong case and not in the right one?",
)

ANSWER_3_16 = exercise("3.16", "One change for a service", kind="choice", points=2, minutes=3)
ANSWER_3_16.objective = "choose an optimisation by what the step is made of"
ANSWER_3_16.question = Choice(
    "abcd",
    "832b55a4ca0cb2ab",
    {
        "a": "the weights are less than a fifth of what this step reads",
        "b": "every further sequence brings its own K and V: the step gets longer",
        "d": "there are 512 programs before any split; and splitting reads the same bytes",
    },
    hint="Count the bytes of a step: the weights once, K and V 64 times. Which part would have to shrink?",
)
