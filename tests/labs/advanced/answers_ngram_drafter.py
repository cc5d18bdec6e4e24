"""Answers that prove the check of exercise 5.4."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

FOLLOWED, NOTHING, ITSELF, LONGEST, LATEST = (
    "drafts what followed before",
    "says nothing where nothing repeats",
    "does not find itself",
    "prefers the longest agreement",
    "prefers the latest place",
)
REPEATS_ITSELF = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    for n in range(longest, shortest - 1, -1):
        for start in range(len(token_ids) - n - 1, -1, -1):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n : start + n + num_draft]
    return token_ids[-1:] * num_draft
"""
NO_OVERLAP = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    for n in range(longest, shortest - 1, -1):
        for start in range(len(token_ids) - 2 * n, -1, -1):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n : start + n + num_draft]
    return []
"""
IN_THE_TEXT = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    for n in range(longest, shortest - 1, -1):
        for start in range(len(token_ids) - n - 1, -1, -1):
            if set(token_ids[start : start + n]) == set(token_ids[-n:]):
                return token_ids[start + n : start + n + num_draft]
    return []
"""
BY_DICTIONARY = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    behind = {}
    for end in range(1, len(token_ids)):
        for n in range(shortest, min(longest, end) + 1):
            behind[tuple(token_ids[end - n : end])] = end
    for n in range(min(longest, len(token_ids)), shortest - 1, -1):
        end = behind.get(tuple(token_ids[len(token_ids) - n :]))
        if end is not None:
            return token_ids[end : end + num_draft]
    return []
"""
BY_SCORE = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    best_length, best_end = shortest - 1, None
    for end in range(len(token_ids) - 1, 0, -1):
        length = 0
        while length < min(longest, end) and token_ids[end - length - 1] == token_ids[-length - 1]:
            length += 1
        if length > best_length:
            best_length, best_end = length, end
    return [] if best_end is None else token_ids[best_end : best_end + num_draft]
"""
BY_WINDOWS = """
def ngram_draft(token_ids, num_draft, longest=3, shortest=1):
    tokens, num = tuple(token_ids), len(token_ids)
    found = (
        end
        for n in reversed(range(shortest, longest + 1))
        if n < num
        for end in reversed(range(n, num))
        if tokens[end - n : end] == tokens[num - n :]
    )
    end = next(found, num)
    return list(tokens[end : end + num_draft])
"""

BANKS = opened_all(
    {
        "5.4": Bank(
            wrong=(
                Wrong("includes what was looked up", {3: "token_ids[start : start + num_draft]"}, FOLLOWED),
                Wrong("one place too far", {3: "token_ids[start + n + 1 : start + n + 1 + num_draft]"}, FOLLOWED),
                Wrong("finds itself", {2: "range(len(token_ids) - n, -1, -1)"}, FOLLOWED),
                Wrong("forgets the first place", {2: "range(len(token_ids) - n - 1, 0, -1)"}, FOLLOWED),
                Wrong("says something in any case", REPEATS_ITSELF, NOTHING),
                Wrong("ignores the shortest", {1: "range(longest, 0, -1)"}, NOTHING),
                Wrong("no overlap with the end", NO_OVERLAP, ITSELF),
                Wrong("the shortest first", {1: "range(shortest, longest + 1)"}, LONGEST),
                Wrong("the longest only", {1: "range(longest, longest - 1, -1)"}, FOLLOWED),
                Wrong("the earliest place", {2: "range(len(token_ids) - n)"}, LATEST),
                Wrong("all that followed", {3: "token_ids[start + n :]"}, FOLLOWED),
                Wrong("one more than wanted", {3: "token_ids[start + n : start + n + num_draft + 1]"}, FOLLOWED),
                Wrong("tokens in any order", IN_THE_TEXT, FOLLOWED),
            ),
            right=(
                Right("a dictionary of n-grams", BY_DICTIONARY),
                Right("the best place by score", BY_SCORE),
                Right("all windows of each length, last first", BY_WINDOWS),
            ),
        ),
    }
)
