"""6.11 and 6.12: two questions over the whole lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_6_11 = exercise("6.11", "One card, a large model", kind="choice", points=2, minutes=5)
ANSWER_6_11.objective = "choose what to compress by what is short"
ANSWER_6_11.question = Choice(
    "abcd",
    "a",
    {
        "b": "70 GB of weights leave 10 GB for all the rest, and the 64 requests alone need 31 GB of K/V",
        "c": "2:4 keeps half of the values, and their places besides: 79 GB, and no room for K/V; and the "
        "model must be trained again first",
        "d": "fewer bits of K/V make room for more requests, but 140 GB of weights do not fit at all",
    },
    hint="Add up for each answer: the weights, then what is left of the card.",
)

ANSWER_6_12 = exercise("6.12", "Cause and symptom", kind="matching", points=2, minutes=3)
ANSWER_6_12.objective = "tell by the symptom what compression did"
ANSWER_6_12.question = Matching(
    "abcde",
    {
        "perplexity doubles, although every weight has 8 bits": "c",
        "the layer's error is small on the calibration text and large on any other": "e",
        "a single stream is faster, a batch of 64 is not": "a",
    },
    hint="Ask of each symptom: is it the values, the calibration, the bytes, the arithmetic or the training?",
)
