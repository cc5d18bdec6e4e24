"""Answers that prove the check of exercise 5.4."""

from twophase_labs.machine.bank import right, wrong

FOLLOWED, NOTHING = "drafts what followed before", "says nothing where nothing repeats"
ITSELF, LATEST, LONGEST = "does not find itself", "prefers the latest place", "prefers the longest agreement"
LOOKS_ALL = "looks all the way back"

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

# fmt: off
BANKS = {
    "5.4": (
        wrong("finds itself", "(token_ids) - n - 1", "(token_ids) - n", by=FOLLOWED),
        wrong("ignores the shortest", "shortest - 1", "0", by=NOTHING),
        wrong("no overlap with the end", "newest = token_ids[-n:]", "pass", "(token_ids) - n - 1",
              "(token_ids) - 2 * n", "[start : start + n] == newest", "[start : start + n] == token_ids[-n:]",
              by=ITSELF),
        wrong("the earliest place", "(len(token_ids) - n - 1, -1, -1", "(len(token_ids) - n", by=LATEST),
        wrong("the shortest first", "(longest, shortest - 1, -", "(shortest, longest + ", by=LONGEST),
        wrong("at most 8 drafts", "start + n + num_draft", "start + n + min(num_draft, 8)", by=LOOKS_ALL),
        wrong("agreements of at most 8", "range(longest, shortest - 1, -1)",
              "range(min(longest, 8), shortest - 1, -1)", by=LOOKS_ALL),
        wrong("texts of at most 256 tokens", "range(len(token_ids) - n - 1, -1, -1)",
              "range(len(token_ids) - n - 1, max(-1, len(token_ids) - 257), -1)", by=LOOKS_ALL),
        right("all windows of each length, last first", BY_WINDOWS),
        right("the best place by score", BY_SCORE),
    ),
}
