"""7.14 to 7.16: three questions over the whole lab."""

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Choice, Matching

EXERCISES = (
    Exercise(
        id="7.14",
        title="What travels?",
        kind="matching",
        names=("answer_7_14",),
        points=2,
        minutes=2,
        objective="say for each way of sharing what it moves, and how often",
        question=Matching(
            "abcde",
            {
                "tensor parallelism": "63406383c8c932d3",
                "pipeline parallelism": "a9aedb2f3a17e1ea",
                "expert parallelism": "089f81353780eb5c",
                "prefill and decode in pools": "ed2c6ef93da32987",
                "engines behind a router": "e0c9a456b9ae79e9",
            },
            hint="Ask of each: where is a result that another machine needs in order to go on?",
        ),
    ),
    Exercise(
        id="7.15",
        title="Eight cards, one service",
        kind="choice",
        names=("answer_7_15",),
        points=2,
        minutes=2,
        objective="choose an arrangement by what is slow",
        question=Choice(
            "abcd",
            "3de2317357d525da",
            {
                "a": "it shortens steps, but ITL is not what is slow, and the prompts cost as much as before",
                "c": "stages shorten neither prompts nor decodes of one request, and the same prompts are computed",
                "d": "round robin spreads 40 instructions over all prefill caches, and half of the cards hold none",
            },
            hint="What makes a first token late here? How much of each prompt has been computed before, and where?",
        ),
    ),
    Exercise(
        id="7.16",
        title="Causes and symptoms",
        kind="matching",
        names=("answer_7_16",),
        points=2,
        minutes=2,
        objective="tell a fleet's faults by their symptoms",
        question=Matching(
            "abcde",
            {
                "the hit rate falls when engines are added": "391c1e73320e02a5",
                "fluent text about the wrong thing, after a network error": "358c1d12e54c8d6a",
                "text of another request, after a network error": "69ff856a03b085df",
                "engines start and drain every minute under a steady load": "ff08d40e1e95d7e5",
                "one rank computes while the others wait, in every layer with experts": "c4968b1e43405ec8",
            },
            hint="A slot that was never written holds something old of its own request's block; a slot written late "
            "holds something of another's.",
        ),
    ),
)
