"""What a document and a question cost on this machine: the notebook measures it before the prediction 5.3."""

from functools import cache

from twophase_labs.advanced.prefix_service import first_token, forget_prefixes, shared_engine

DOCUMENT, QUESTION = 480, 16


def prompt_of(first_id: int, num_tokens: int) -> list[int]:
    """Token ids that nobody else uses; what they say makes no difference to the time."""
    return list(range(first_id, first_id + num_tokens))


@cache
def seconds_per_token() -> float:
    """Of a prompt on this machine, from two prompts of which nothing is cached; the best of two."""
    llm = shared_engine()
    forget_prefixes(llm)
    first_token(llm, prompt_of(40_000, 32))  # warm-up
    times_s = {
        num_tokens: min(first_token(llm, prompt_of(start, num_tokens)).ttft_s or 0.0 for start in (30_000, 35_000))
        for num_tokens in (32, 160)
    }
    forget_prefixes(llm)
    return (times_s[160] - times_s[32]) / 128


@cache
def seconds_of_question() -> float:
    """To the first token of a prompt of 16 tokens: little to compute, and all the weights to read."""
    llm = shared_engine()
    return min(first_token(llm, prompt_of(start, QUESTION)).ttft_s or 0.0 for start in (41_000, 42_000, 43_000))
