"""Answers that prove the check of exercise 1.4."""

from twophase_labs.machine.exercise import Bank, Right, Wrong


def counting(
    start: str = "num_cached if cached else 0",
    tokens: str = "length - start",
    pairs: str = "sum(range(start + 1, length + 1))",
    kept: str = "length",
    lengths: str = "range(num_prompt, num_prompt + num_new)",
) -> str:
    """A whole answer, a loop over the passes, with one of its expressions replaced."""
    return f"""
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in {lengths}:
        start = {start}
        num_tokens += {tokens}
        num_pairs += {pairs}
        num_cached = {kept}
    return num_tokens, num_pairs
"""


CLOSED_FORM = """
def count_work(num_prompt, num_new, cached):
    last = num_prompt + num_new - 1
    lengths = range(num_prompt, last + 1)
    if cached:
        lengths = [last] if num_new else []
    return sum(lengths), sum(n * (n + 1) // 2 for n in lengths)
"""
NO_ZERO = """
def count_work(num_prompt, num_new, cached):
    last = num_prompt + num_new - 1
    lengths = [last] if cached else range(num_prompt, last + 1)
    return sum(lengths), sum(n * (n + 1) // 2 for n in lengths)
"""
TOKENS_ONLY = """
def count_work(num_prompt, num_new, cached):
    if cached:
        return num_prompt + num_new - 1
    return sum(range(num_prompt, num_prompt + num_new))
"""
WITH_NUMPY = """
def count_work(num_prompt, num_new, cached):
    lengths = np.arange(num_prompt, num_prompt + num_new)
    starts = np.concatenate([[0], lengths[:-1]])[: len(lengths)] if cached else np.zeros_like(lengths)
    return (lengths - starts).sum(), (lengths * (lengths + 1) // 2 - starts * (starts + 1) // 2).sum()
"""
NAIVE = """
def count_work(num_prompt, num_new, cached):
    seen, tokens, pairs = set(), 0, 0
    for turn in range(num_new):
        for query in range(num_prompt + turn):
            if cached and query in seen:
                continue
            seen.add(query)
            tokens += 1
            for key in range(query + 1):
                pairs += 1
    return [tokens, pairs]
"""

NO_TOKENS, WITH_TOKENS = "counts tokens without a cache", "counts tokens with a cache"
NO_PAIRS, WITH_PAIRS = "counts pairs without a cache", "counts pairs with a cache"
BANKS = {
    "1.4": Bank(
        wrong=(
            Wrong("one count only", TOKENS_ONLY, "returns two counts"),
            Wrong("caches without being asked to", counting(start="num_cached"), NO_TOKENS),
            Wrong("one token per pass", counting(tokens="1"), NO_TOKENS),
            Wrong("counts the token being written", counting(tokens="length - start + 1"), NO_TOKENS),
            Wrong(
                "reads the last token too", counting(lengths="range(num_prompt, num_prompt + num_new + 1)"), NO_TOKENS
            ),
            Wrong("one pass fewer", counting(lengths="range(num_prompt, num_prompt + num_new - 1)"), NO_TOKENS),
            Wrong("at most 20 passes", counting(lengths="range(num_prompt, num_prompt + min(num_new, 20))"), NO_TOKENS),
            Wrong(
                "at most 256 passes", counting(lengths="range(num_prompt, num_prompt + min(num_new, 256))"), NO_TOKENS
            ),
            Wrong(
                "the prompt comes for free",
                counting(start="num_cached or num_prompt - 1 if cached else 0"),
                WITH_TOKENS,
            ),
            Wrong("caches one short", counting(kept="length - 1"), WITH_TOKENS),
            Wrong("forgets the prompt", counting(start="num_cached or num_prompt if cached else 0"), WITH_TOKENS),
            Wrong("caches nothing", counting(kept="0"), WITH_TOKENS),
            Wrong("reads the prompt for no new token", NO_ZERO, WITH_TOKENS),
            Wrong("leaves out a token's own key", counting(pairs="sum(range(start, length))"), NO_PAIRS),
            Wrong("the full square, no causality", counting(pairs="(length - start) * length"), NO_PAIRS),
            Wrong("only the last query's pairs", counting(pairs="length"), NO_PAIRS),
            Wrong("new keys only", counting(pairs="(length - start) * (length - start + 1) // 2"), WITH_PAIRS),
        ),
        right=(
            Right("a loop over the passes", counting()),
            Right("closed form", CLOSED_FORM),
            Right("NumPy", WITH_NUMPY),
            Right("query by query, as a list", NAIVE),
            Right("by triangles", counting(pairs="length * (length + 1) // 2 - start * (start + 1) // 2")),
            Right(
                "whole floats",
                counting(tokens="float(length - start)", pairs="float(sum(range(start + 1, length + 1)))"),
            ),
        ),
    ),
}
