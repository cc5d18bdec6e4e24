"""3.15 to 3.17 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_3_15 = exercise("3.15", "What moves a, what moves b", kind="matching", points=2, minutes=3)
ANSWER_3_15.objective = "know what the constant and the slope are made of"
ANSWER_3_15.question = Matching(
    "abcd",
    {
        "weights in int8": "eee716c8383552c8",
        "K and V in int8": "86cfcc254bd9ac1d",
        "half as many layers": "8905bd0888c989e8",
        "twice the memory bandwidth": "4b0235596be06971",
        "fewer kernel launches (a CUDA graph)": "9c238f717e60c171",
        "a block size of 32 instead of 16": "00168ca735dc48de",
    },
    hint="Ask of each: does a step at context 0 notice? And does a token of context cost something else now?",
)

ANSWER_3_16 = exercise("3.16", "Symptoms of a kernel", kind="matching", points=2, minutes=3)
ANSWER_3_16.objective = "tell kernel bugs by their symptoms"
ANSWER_3_16.question = Matching(
    "abcde",
    {
        "right for one KV head, wrong for several": "c6a5fed833add0ca",
        "right for lengths 16, 32, 48, wrong in between": "ffb1b5a63130f045",
        "every split right by itself, the merged result off": "f4685cf98bf5402b",
        "right alone, wrong for all but the first of a batch": "fd790979b3d5e40f",
        "NaN for the shortest sequence only, once there are splits": "fbb428a7dd441ed5",
    },
    hint="Ask of each: which loop, index or mask is exercised in the wrong case and not in the right one?",
)

ANSWER_3_17 = exercise("3.17", "One change for a service", kind="choice", points=2, minutes=3)
ANSWER_3_17.objective = "choose an optimisation by what the step is made of"
ANSWER_3_17.question = Choice(
    "abcd",
    "b8afcd8c077ae8f1",
    {
        "a": "the weights are less than a fifth of what this step reads",
        "b": "every further sequence brings its own K and V: the step gets longer",
        "d": "there are 512 programs before any split; and splitting reads the same bytes",
    },
    hint="Count the bytes of a step: the weights once, K and V 64 times. Which part would have to shrink?",
)
