"""7.15 to 7.17: three questions over the whole lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_7_15 = exercise("7.15", "What travels?", kind="matching", points=2, minutes=2)
ANSWER_7_15.objective = "say for each way of sharing what it moves, and how often"
ANSWER_7_15.question = Matching(
    "abcde",
    {
        "tensor parallelism": "e9fdabe3e15d3283",
        "pipeline parallelism": "3c0dbead38e769de",
        "expert parallelism": "33d53f2319515d61",
        "prefill and decode in pools": "019cad6e7e2f1980",
        "engines behind a router": "2a748a8d8d3a2c50",
    },
    hint="Ask of each: where is a result that another machine needs in order to go on?",
)

ANSWER_7_16 = exercise("7.16", "Eight cards, one service", kind="choice", points=2, minutes=2)
ANSWER_7_16.objective = "choose an arrangement by what is slow"
ANSWER_7_16.question = Choice(
    "abcd",
    "df811d48325cc80d",
    {
        "a": "its one cache would hold all 40 instructions, but with 64 all-reduces in every step eight cards "
        "finish fewer tokens per second than as eight engines, and shorter steps are not what is missing",
        "c": "stages shorten neither prompts nor decodes of one request, and the same prompts are computed",
        "d": "round robin spreads 40 instructions over all prefill caches, and half of the cards hold none",
    },
    hint="What makes a first token late here? How much of each prompt has been computed before, and where?",
)

ANSWER_7_17 = exercise("7.17", "Causes and symptoms", kind="matching", points=2, minutes=2)
ANSWER_7_17.objective = "tell a fleet's faults by their symptoms"
ANSWER_7_17.question = Matching(
    "abcde",
    {
        "the hit rate falls when engines are added": "ebd914f38e2468aa",
        "a completion ignores part of its prompt, after a network error": "61801d505fc70241",
        "a healthy request's text becomes another's in the middle, after a network error": "f18ebe8563cd66ce",
        "engines start and drain every minute under a steady load": "9cc9796ee82ac46b",
        "one rank computes while the others wait, in every layer with experts": "c8b4e12c683f377f",
    },
    hint="A slot that was never written holds what the block's former owner left there: the request that was "
    "handed over never sees that part of its prompt.",
)
