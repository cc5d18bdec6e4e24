"""Prefix caching: the time it saves."""

from functools import cache

from twophase_labs.advanced.prefix_service import first_token, forget_prefixes, shared_engine
from twophase_labs.advanced.prefix_times import DOCUMENT, QUESTION, prompt_of
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number


@cache
def times_faster() -> float:
    """Measured: the document and a question, nothing in the cache and the document there; the best of each."""
    llm = shared_engine()
    forget_prefixes(llm)
    document, question = prompt_of(1_000, DOCUMENT), prompt_of(2_000, QUESTION)
    unknown_s = [first_token(llm, one + question).ttft_s or 0.0 for one in (prompt_of(6_000, DOCUMENT), document)]
    known_s = [first_token(llm, document + prompt_of(start, QUESTION)).ttft_s or 0.0 for start in (3_000, 4_000, 5_000)]
    forget_prefixes(llm)
    return min(unknown_s) / min(known_s)


EXERCISES = (
    Exercise(
        id="5.3",
        was="5.4",
        title="How much sooner",
        kind="prediction",
        names=("guess_5_3",),
        points=1,
        minutes=3,
        objective="predict a time to first token from what is left to compute",
        needs=("model",),
        time_limit_s=90,
        hints=("With the document known, a step is left that computes little. Is it 31 times shorter, as its tokens?",),
        question=Number(
            times_faster,
            factor=2,
            unit="times",
            hint="The tokens left are one in 31. But no step is shorter than it takes to read the weights: use the "
            "second number that the cell above prints.",
        ),
    ),
)
