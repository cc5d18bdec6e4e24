"""Answers that prove the check of exercise 1.4."""

from twophase_labs.machine.bank import right, wrong

RETURNS_TWO, NO_TOKENS = "returns two counts", "counts tokens without a cache"
WITH_TOKENS, NO_PAIRS = "counts tokens with a cache", "counts pairs without a cache"
WITH_PAIRS = "counts pairs with a cache"

ONLY_THE_LAST_QUERY = """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + num_new):
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += length
        num_cached = length
    return num_tokens, num_pairs
"""
NEW_KEYS_ONLY = """
def count_work(num_prompt, num_new, cached):
    num_tokens = num_pairs = num_cached = 0
    for length in range(num_prompt, num_prompt + num_new):
        start = num_cached if cached else 0
        num_tokens += length - start
        num_pairs += (length - start) * (length - start + 1) // 2
        num_cached = length
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
RECURSION_FROM_THE_LAST = """
def count_work(num_prompt, num_new, cached):
    from math import comb
    if num_new == 0:
        return (0, 0)
    if cached:
        return num_prompt + num_new - 1, comb(num_prompt + num_new, 2)
    return comb(num_prompt + num_new, 2) - comb(num_prompt, 2), comb(num_prompt + num_new + 1, 3) - comb(num_prompt + 1, 3)
"""

# fmt: off
BANKS = {
    "1.4": (
        wrong("one count only",
              {1: "if cached:\n    return num_prompt + num_new - 1\nreturn sum(range(num_prompt, num_prompt + num_new))"},
              by=RETURNS_TWO),
        wrong("one token per pass", "length - start", "1", by=NO_TOKENS),
        wrong("at most 20 passes", "num_prompt + num_new", "num_prompt + min(num_new, 20)", by=NO_TOKENS),
        wrong("caches nothing", "start = length", "start = 0", by=WITH_TOKENS),
        wrong("reads the prompt for no new token",
              {1: "last = num_prompt + num_new - 1\nlengths = [last] if cached else range(num_prompt, last + 1)\nreturn (sum(lengths), sum((n * (n + 1) // 2 for n in lengths)))"},
              by=WITH_TOKENS),
        wrong("only the last query's pairs", ONLY_THE_LAST_QUERY, by=NO_PAIRS),
        wrong("new keys only", NEW_KEYS_ONLY, by=WITH_PAIRS),
        right("closed form", CLOSED_FORM),
        right("NumPy",
              {1: "lengths = np.arange(num_prompt, num_prompt + num_new)\nstarts = np.concatenate([[0], lengths[:-1]])[:len(lengths)] if cached else np.zeros_like(lengths)\nreturn ((lengths - starts).sum(), (lengths * (lengths + 1) // 2 - starts * (starts + 1) // 2).sum())"}),
        right("recursion from the last pass", RECURSION_FROM_THE_LAST),
    ),
}
