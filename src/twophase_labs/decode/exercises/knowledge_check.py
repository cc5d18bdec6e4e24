"""3.17 to 3.19 Knowledge check."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_3_17 = exercise("3.17", "What moves a, what moves b", kind="matching", points=2, minutes=3)
ANSWER_3_17.objective = "know what the constant and the slope are made of"
ANSWER_3_17.question = Matching(
    "abcd",
    {
        "weights in int8": "e76692df6f39c716",
        "K and V in int8": "d5e7630ad20d6ce7",
        "half as many layers": "d51c5e23924a8de8",
        "twice the memory bandwidth": "1d78a97b267df301",
        "fewer kernel launches (a CUDA graph)": "6e8f4d9c7a66d432",
        "a block size of 32 instead of 16": "e0e6742094a7641a",
    },
    hint="Ask of each: does a step at context 0 notice? And does a token of context cost something else now?",
)

ANSWER_3_18 = exercise("3.18", "Symptoms of a kernel", kind="matching", points=2, minutes=3)
ANSWER_3_18.objective = "tell kernel bugs by their symptoms"
ANSWER_3_18.question = Matching(
    "abcde",
    {
        "right for one KV head, wrong for several": "744beccdf779e058",
        "right for lengths 16, 32, 48, wrong in between": "ffc4f9e73d9a7749",
        "every split right by itself, the merged result off": "fe743bf0f1216c8e",
        "right alone, wrong for all but the first of a batch": "4ee62f873b2f4414",
        "NaN for the shortest sequence only, once there are splits": "c9b810bcfccb15c7",
    },
    hint="Ask of each: which loop, index or mask is exercised in the wrong case and not in the right one?",
)

ANSWER_3_19 = exercise("3.19", "One change for a service", kind="choice", points=2, minutes=3)
ANSWER_3_19.objective = "choose an optimisation by what the step is made of"
ANSWER_3_19.question = Choice(
    "abcd",
    "1a528f78e8095c01",
    {
        "a": "the weights are less than a fifth of what this step reads",
        "b": "every further sequence brings its own K and V: the step gets longer",
        "d": "there are 512 programs before any split; and splitting reads the same bytes",
    },
    hint="Count the bytes of a step: the weights once, K and V 64 times. Which part would have to shrink?",
)
