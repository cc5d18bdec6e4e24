"""Answers that prove the check of exercise 1.5."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

CLOSED_FORM = """
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

BANKS = {
    "1.5": Bank(
        wrong=(
            Wrong("one count only", TOKENS_ONLY, "returns two counts"),
            Wrong("caches without being asked to", {1: "num_cached"}, "counts tokens without a cache"),
            Wrong("one token per pass", {2: "1"}, "counts tokens without a cache"),
            Wrong("counts the token being written", {2: "length - start + 1"}, "counts tokens without a cache"),
            Wrong("caches one short", {4: "length - 1"}, "counts tokens with a cache"),
            Wrong("forgets the prompt", {1: "num_cached or num_prompt if cached else 0"}, "counts tokens with a cache"),
            Wrong("caches nothing", {4: "0"}, "counts tokens with a cache"),
            Wrong("leaves out a token's own key", {3: "sum(range(start, length))"}, "counts pairs without a cache"),
            Wrong("the full square, no causality", {3: "(length - start) * length"}, "counts pairs without a cache"),
            Wrong(
                "new keys only",
                {3: "(length - start) * (length - start + 1) // 2"},
                "counts pairs with a cache",
            ),
        ),
        right=(
            Right("closed form", CLOSED_FORM),
            Right("a running sum", {3: "sum(position + 1 for position in range(start, length))"}),
            Right("by triangles", {3: "length * (length + 1) // 2 - start * (start + 1) // 2"}),
        ),
    ),
}
