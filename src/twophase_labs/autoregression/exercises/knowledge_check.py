"""Knowledge check: three questions on what follows from the lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_1_16 = exercise("1.16", "A token changes in the middle", kind="matching", points=2, minutes=2)
ANSWER_1_16.objective = "know what keys and values depend on"
ANSWER_1_16.hints = (
    "What is a key computed from in the first layer? And in the second?",
    "In the first layer a key comes from the embedding of its own token. In the second it comes from the output of "
    "the first layer's attention.",
)
ANSWER_1_16.question = Matching(
    "abc",
    {"SmolLM2, 30 layers": "b", "the toy model, one layer": "a"},
    hint="From the second layer on, a position's input is a mix of what stands before it.",
)

ANSWER_1_17 = exercise("1.17", "Half the bytes", kind="choice", points=1, minutes=2)
ANSWER_1_17.objective = "go from bytes per token to throughput"
ANSWER_1_17.hints = ("How many requests are inside now, and how long does each stay?",)
ANSWER_1_17.question = Choice(
    "abcd",
    "a",
    {
        "b": "a request takes as many steps as before, and the question says how long a step takes",
        "c": "the requests that waited outside are inside now, and they finish too",
        "d": "there are more requests inside, and the question says that a step takes as long as before",
    },
    hint="Little's law: requests inside = requests per second times seconds each stays.",
)

ANSWER_1_18 = exercise("1.18", "The order of processors", kind="choice", points=1, minutes=2)
ANSWER_1_18.objective = "see that processors do not commute"
ANSWER_1_18.hints = ("Take probabilities 0.8, 0.15, 0.05 and flatten them by T = 2 on paper, before and after top-p.",)
ANSWER_1_18.question = Choice(
    "abc",
    "a",
    {
        "b": "flattening moves probability; from which tokens to which?",
        "c": "the set kept depends on probabilities, and temperature changes those",
    },
    hint="Take probabilities 0.8, 0.15, 0.05 and flatten them by T = 2 on paper, before and after top-p.",
)
