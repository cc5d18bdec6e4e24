"""6.19 and 6.20: two questions over the whole lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_6_19 = exercise("6.19", "One card, a large model", kind="choice", points=2, minutes=3)
ANSWER_6_19.objective = "choose what to compress by what is short"
ANSWER_6_19.question = Choice(
    "abcd",
    "abdf6fa0b9d8ab35",
    {
        "b": "70 GB of weights leave 10 GB for all the rest, and the 64 requests alone need 31 GB of K/V",
        "c": "2:4 keeps half of the values, and their places besides: 79 GB, and no room for K/V; and the "
        "model must be trained again first",
        "d": "fewer bits of K/V make room for more requests, but 140 GB of weights do not fit at all",
    },
    hint="Add up for each answer: the weights, then what is left of the card.",
)

ANSWER_6_20 = exercise("6.20", "Cause and symptom", kind="matching", points=2, minutes=2)
ANSWER_6_20.objective = "tell by the symptom what compression did"
ANSWER_6_20.question = Matching(
    "abcde",
    {
        "perplexity doubles, although every weight has 8 bits": "220d912c595c8696",
        "the layer's error is small on the calibration text and large on any other": "b3cfb86d96c96114",
        "a single stream is faster, a batch of 64 is not": "68a06f365997fe9e",
        "half of the multiplications are gone, and the step takes as long as before": "4bf68211e31d3144",
        "fluent answers in one domain, nonsense outside": "abeadb3a2074c306",
    },
    hint="Ask of each symptom: is it the values, the calibration, the bytes, the arithmetic or the training?",
)
