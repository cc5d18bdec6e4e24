"""7.12 and 7.13: two questions over the whole lab."""

from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Choice, Matching

ANSWER_7_12 = exercise("7.12", "Eight cards, one service", kind="choice", points=2, minutes=3)
ANSWER_7_12.objective = "choose an arrangement by what is slow"
ANSWER_7_12.question = Choice(
    "abcd",
    "e3f69b21889441eb",
    {
        "a": "its one cache would hold all 40 instructions, but with 64 all-reduces in every step eight cards "
        "finish fewer tokens per second than as eight engines, and shorter steps are not what is missing",
        "c": "stages shorten neither prompts nor decodes of one request, and the same prompts are computed",
        "d": "round robin spreads 40 instructions over all prefill caches, and half of the cards hold none",
    },
    hint="What makes a first token late here? How much of each prompt has been computed before, and where?",
)

ANSWER_7_13 = exercise("7.13", "Causes and symptoms", kind="matching", points=2, minutes=3)
ANSWER_7_13.objective = "tell a fleet's faults by their symptoms"
ANSWER_7_13.question = Matching(
    "abcde",
    {
        "the hit rate falls when engines are added": "c71467a0edf07303",
        "a completion ignores part of its prompt, after a network error": "20cf0a15d46620a4",
        "a healthy request's text becomes another's in the middle, after a network error": "be9a043ab9dc8b0e",
        "engines start and drain every minute under a steady load": "91487fe55718ec35",
        "one rank computes while the others wait, in every layer with experts": "9243418936d9e23f",
    },
    hint="A slot that was never written holds what the block's former owner left there: the request that was "
    "handed over never sees that part of its prompt.",
)
