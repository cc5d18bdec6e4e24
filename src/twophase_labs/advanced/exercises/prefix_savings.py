"""5.1 Prefix caching: the memory it saves, and the time."""

from functools import cache

from twophase_labs.advanced.prefix_service import first_token, forget_prefixes, shared_engine
from twophase_labs.advanced.prefix_times import DOCUMENT, QUESTION, prompt_of
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.questions import Number


def gigabytes_saved() -> float:
    """All users but one find the shared tokens there; a token is K and V, 32 layers, 4,096 wide, 2 bytes."""
    return (300 - 1) * 200 * 2 * 32 * 4096 * 2 / 1e9


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
        title="300 users, one prefix",
        kind="numeric",
        names=("answer_5_3",),
        points=1,
        minutes=3,
        objective="compute what sharing saves from a model's shape",
        hints=("How many bytes has a token? K and V, in every layer, as wide as the model, two bytes a number.",),
        question=Number(
            gigabytes_saved,
            rel=0.01,
            unit="GB",
            hint="Somebody has to hold the shared tokens: how many of the 300 need not? And a GB is 10^9 bytes here; "
            "with half a MB per token you'd be 5 % off.",
        ),
    ),
    Exercise(
        id="5.4",
        title="How much sooner",
        kind="prediction",
        names=("guess_5_4",),
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
