"""Speculative decoding: drafts from the text itself."""

from collections.abc import Sequence
from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

NGRAM = exercise(
    "5.4", "Draft what comes, from what came", "ngram_draft", points=2, minutes=8, lines=3, time_limit_s=10
)
NGRAM.objective = "draft tokens by looking up the newest ones in the text so far"
NGRAM.hints = (
    "Take the newest n tokens. Have they stood next to each other before? Then draft what followed.",
    "Try n = longest first, then shorter ones; for each n the latest earlier place first.",
    "for n in ...:  # longest first\n    newest = token_ids[-n:]\n"
    "    for start in range(len(token_ids) - n - 1, ...):  # not len - n: there the newest find themselves\n"
    "        if token_ids[start : start + n] == newest:\n            return ...\nreturn []",
)


def drafted(answer: Any, token_ids: list[int], num_draft: int, longest: int = 3, shortest: int = 1) -> list[int]:
    with unchanged(token_ids=token_ids):
        got = answer.ngram_draft(token_ids, num_draft, longest, shortest)
    if not isinstance(got, list):
        reject(f"the draft is {got!r:.80}, expected a list of token ids; an empty one where nothing is found")
    return got


def expect(answer: Any, text: Sequence[int], num_draft: int, expected: list[int], longest: int, shortest: int) -> None:
    what = f"the draft after {' '.join(map(str, text))} (at most {num_draft}, n from {longest} down to {shortest})"
    compare(drafted(answer, list(text), num_draft, longest, shortest), expected, what=what, axes=("place",))


@NGRAM.check("drafts what followed before")
def guesses_what_followed(answer: Any, draw: Draw) -> None:
    """The draft begins right behind the place that was found, and goes on in the text's order. An empty draft: did
    the newest tokens find themselves?"""
    expect(answer, [7, 1, 2, 3, 4, 1, 2], 3, [3, 4, 1], 3, 1)
    expect(answer, [5, 9, 5], 1, [9], 3, 1)
    names = draw.permutation(50).tolist()
    expect(answer, [*names, *names[10:13]], 8, names[13:21], 3, 1)


@NGRAM.check("says nothing where nothing repeats")
def says_nothing(answer: Any, draw: Draw) -> None:
    """No place for any n down to `shortest`: an empty list. A draft that is wrong costs time."""
    expect(answer, draw.permutation(20).tolist(), 4, [], 3, 1)
    expect(answer, [3, 4], 4, [], 3, 1)
    expect(answer, [3], 4, [], 3, 1)
    expect(answer, [1, 2, 8, 3, 2], 4, [], 3, 2)  # the 2 came before; a pair was asked for


@NGRAM.check("does not find itself")
def does_not_find_itself(answer: Any, draw: Draw) -> None:
    """The newest n tokens are at the end in any case. Only an earlier place has something behind it; it may overlap
    with the end."""
    expect(answer, [1, 2, 3, 4, 5, 6], 3, [], 2, 1)
    expect(answer, [4, 4], 3, [4], 3, 1)
    expect(answer, [7, 7, 7, 7], 3, [7], 3, 1)


@NGRAM.check("prefers the latest place")
def takes_the_latest(answer: Any, draw: Draw) -> None:
    """Of equally long agreements the latest: texts repeat what they have just said."""
    expect(answer, [1, 2, 30, 8, 1, 2, 40, 9, 1, 2], 1, [40], 3, 1)
    expect(answer, [6, 10, 6, 11, 6, 12, 6], 2, [12, 6], 3, 1)


@NGRAM.check("prefers the longest agreement")
def takes_the_longest(answer: Any, draw: Draw) -> None:
    """Three tokens that agree say more about the next than one does."""
    expect(answer, [1, 2, 3, 50, 9, 3, 60, 9, 1, 2, 3], 1, [50], 3, 1)
    expect(answer, [1, 2, 3, 50, 2, 3, 60, 3, 70, 1, 2, 3], 1, [50], 3, 1)
    expect(answer, [1, 2, 3, 50, 2, 3, 60, 3, 70, 1, 2, 3], 1, [60], 2, 1)
    expect(answer, [1, 2, 3, 50, 2, 3, 60, 3, 70, 1, 2, 3], 1, [70], 1, 1)
    for large in (10_001, 65_537):  # another token than 1
        expect(answer, [large, 50, 1, 60, large], 1, [50], 3, 1)
    got = answer.ngram_draft([1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 1, 2, 3, 4], 1)
    compare(got, [60], what="the draft where nothing is said of `longest`, so that it is 3,")
    got = answer.ngram_draft([1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3], 1)
    compare(got, [50], what="the draft where nothing is said of `longest`, so that it is 3,")
    got = answer.ngram_draft([1, 50, 2, 1], 1)
    compare(got, [50], what="the draft where nothing is said of `shortest`, so that it is 1,")


@NGRAM.check("keeps to the limit")
def keeps_to_the_limit(answer: Any, draw: Draw) -> None:
    """At most `num_draft` tokens, and fewer where the text ends."""
    for num_draft in (0, 1, 2, 5):
        text = [1, 2, 3, 4, 5, 6, 7, 8, 1]
        expect(answer, text, num_draft, text[1 : 1 + num_draft], 3, 1)
    expect(answer, [1, 2, 3, 1], 9, [2, 3, 1], 3, 1)


@NGRAM.check("looks all the way back", between=(50, 800))
def looks_far_back(answer: Any, draw: Draw, between: int) -> None:
    """If they stood together before, however long ago; and as many drafts as are asked for."""
    # What stood together a long time ago, and many drafts of it.
    names = draw.permutation(between + 100).tolist()
    expect(answer, [*names, *names[40:43]], 50, names[43:93], 3, 1)
    long = names[:30]  # an agreement of 30 tokens, against one of 10 that is later
    expect(answer, [*long, 1000, *long[-10:], 2000, *names[100:], *long], 1, [1000], 30, 1)


def plain(text: Sequence[int], num_draft: int, longest: int, shortest: int) -> list[int]:
    """The oracle: of all places, the one with the longest agreement up to `longest`, the latest of these."""
    best: tuple[int, int] = (0, 0)
    for end in range(1, len(text)):
        agreeing = 0
        while agreeing < min(longest, end) and text[end - 1 - agreeing] == text[-1 - agreeing]:
            agreeing += 1
        if agreeing >= shortest:
            best = max(best, (agreeing, end))
    return list(text[best[1] : best[1] + num_draft]) if best[0] else []


@NGRAM.check(
    "agrees with a plain search", {"alphabet": 2}, {"alphabet": 3}, {"alphabet": 8}, {"alphabet": 12, "most": 400}
)
def agrees_everywhere(answer: Any, draw: Draw, alphabet: int, most: int = 24) -> None:
    """Some text is treated differently; the case names the first."""
    for _ in range(60 if most < 100 else 12):
        text = draw.integers(0, alphabet, draw.integer(1 if most < 100 else most // 2, most)).tolist()
        shortest = draw.integer(1, 4)
        longest, num_draft = draw.integer(shortest, 5 if most < 100 else 12), draw.integer(0, 7)
        expect(answer, text, num_draft, plain(text, num_draft, longest, shortest), longest, shortest)
