"""Drafts of a small model: tokens, and the rows that they were drawn from."""

import math
from typing import Any

import numpy as np

from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.exercises.verification import far_from, rows
from twophase_labs.machine.checks import Draw, amount, reject
from twophase_labs.machine.exercise import exercise

DRAFT = exercise(
    "5.6", "Drafts of a small model", "draft_with_model", points=3, minutes=8, lines=6, difficulty=2, time_limit_s=20
)
DRAFT.objective = "draft with a model so that the verifier can be exact"
DRAFT.hints = (
    "One token after the other: the row for the second draft depends on the first one.",
    "Ask `next_probs` about the text with all drafts so far, draw from the row, and keep both, token and row. "
    "`np.stack` makes an array of a list of rows.",
    "drafts, q = [], []\nfor _ in range(num_draft):\n    row = ...  # behind all that is there by now\n"
    "    ...  # draw, and keep two things\nreturn drafts, ...",
)

NUM_RUNS = 4_000


class ToyModel:
    """Probabilities that depend on how long the text is, its last token and the one before; and what it was asked."""

    def __init__(self, draw: Draw, vocab_size: int = 5, is_certain: bool = False) -> None:
        self.tables = [rows(draw, vocab_size, vocab_size) for _ in range(4)]
        if is_certain:
            self.tables = [np.eye(vocab_size)[table.argmax(1)] for table in self.tables]
        self.vocab_size, self.asked = vocab_size, list[list[int]]()

    def row(self, token_ids: list[int]) -> np.ndarray:
        before = token_ids[-2] if len(token_ids) > 1 else 0
        return self.tables[(len(token_ids) + before) % 4][token_ids[-1]].copy()

    def next_probs(self, token_ids: Any) -> np.ndarray:
        self.asked.append(list(token_ids))
        return self.row(self.asked[-1])


def drafted(answer: Any, model: ToyModel, text: list[int], num_draft: int, chance: Chance) -> tuple[list[int], Any]:
    before = list(text)
    got = answer.draft_with_model(model.next_probs, text, num_draft, chance)
    if text != before:
        reject("the call modified its input, `token_ids`", "The engine's own text: make a new list.")
    if not isinstance(got, tuple) or len(got) != 2:
        reject(f"the result is {got!r:.80}, expected a pair (drafts, q)")
    drafts, q = got
    if not isinstance(drafts, list) or len(drafts) != num_draft:
        reject(
            f"with num_draft={num_draft} the drafts are {drafts!r:.80}, expected a list of {amount(num_draft, 'token')}"
        )
    if not isinstance(q, np.ndarray) or q.shape != (num_draft, model.vocab_size):
        told = f"an array of shape {q.shape}" if isinstance(q, np.ndarray) else f"{q!r:.80}"
        reject(f"with num_draft={num_draft} q is {told}, expected an array of shape {(num_draft, model.vocab_size)}")
    return drafts, q


@DRAFT.check("asks behind its own drafts", num_draft=(1, 5))
def asks_behind_its_drafts(answer: Any, draw: Draw, num_draft: int) -> None:
    """Draft i follows the text and drafts 0 to i - 1; one call of next_probs for each draft, none besides."""
    for length in (1, 2, 7):
        model = ToyModel(draw)
        text = draw.integers(0, 5, length).tolist()
        drafts, _ = drafted(answer, model, text, num_draft, Chance(draw.integer(0, 2**31)))
        expected = [[*text, *drafts[:i]] for i in range(num_draft)]
        if model.asked != expected:
            wrong = next((i for i, pair in enumerate(zip(model.asked, expected, strict=False)) if pair[0] != pair[1]),
                         min(len(model.asked), len(expected)))  # fmt: skip
            if wrong == len(expected):
                reject(
                    f"{amount(num_draft, 'draft')} took {amount(len(model.asked), 'call')} of next_probs",
                    "Each call costs a pass.",
                )
            got = model.asked[wrong] if wrong < len(model.asked) else "nothing"
            reject(f"for draft {wrong} next_probs was asked about {got}, expected {expected[wrong]}")


@DRAFT.check(
    "gives the rows the drafts were drawn from",
    {"num_draft": 1},
    {"num_draft": 4},
    {"num_draft": 3, "is_certain": True},
)
def gives_the_rows(answer: Any, draw: Draw, num_draft: int, is_certain: bool = False) -> None:
    """Row i of q is what next_probs said before draft i was drawn, unchanged."""
    model = ToyModel(draw, is_certain=is_certain)
    text = draw.integers(0, 5, 4).tolist()
    drafts, q = drafted(answer, model, text, num_draft, Chance(draw.integer(0, 2**31)))
    for i in range(num_draft):
        expected = model.row([*text, *drafts[:i]])
        if not np.allclose(q[i], expected, rtol=1e-9, atol=0):  # a 0 stays a 0, as in the example
            reject(
                f"row {i} of q is {np.array2string(q[i], precision=3)}; "
                f"draft {i} was drawn from {np.array2string(expected, precision=3)}"
            )


@DRAFT.check("says what a certain model says")
def follows_certain_rows(answer: Any, draw: Draw) -> None:
    """A row with all its weight on one token leaves nothing to chance."""
    for num_draft in (1, 6, draw.integer(65, 90)):
        model, text = ToyModel(draw, 7, is_certain=True), draw.integers(0, 7, 3).tolist()
        drafts, _ = drafted(answer, model, text, num_draft, Chance(0))
        expected = list(text)
        for _ in range(num_draft):
            expected.append(int(model.row(expected).argmax()))
        if drafts != expected[3:]:
            reject(f"the model is certain of {expected[3:]}, and the drafts are {drafts}")


@DRAFT.check("draws, and does not choose", place=(0, 1))
def draws_from_the_rows(answer: Any, draw: Draw, place: int) -> None:
    """Token x must be drafted with probability q[i, x], or p/q is not the share that may be kept: use
    chance.draw(row)."""
    # Each draft, given those before it, comes as often as its row says.
    model, text, chance = ToyModel(draw, 3), [0], Chance(draw.integer(0, 2**31))
    counts: dict[tuple[int, ...], np.ndarray] = {}
    for _ in range(NUM_RUNS):
        drafts, _ = drafted(answer, model, text, place + 1, chance)
        counts.setdefault(tuple(drafts[:place]), np.zeros(3))[drafts[place]] += 1
    before, most = max(counts.items(), key=lambda item: item[1].sum())
    expected = model.row([*text, *before])
    found = far_from(most, expected)
    if found is not None:
        token, share = found
        reject(
            f"after the drafts {list(before)} token {token} is drafted in {share:.1%} of {int(most.sum()):,} runs; its "
            f"row says {expected[token]:.1%}"
        )


@DRAFT.check("can be verified without a trace")
def is_verified_without_a_trace(answer: Any, draw: Draw) -> None:
    """With these drafts and rows, the rule of 5.5 must lead to the large model's distribution."""
    # Drafts and rows in the exact rule: what comes out is distributed as the large model says.
    small, large = ToyModel(draw, 4), ToyModel(draw, 4)
    text, chance = [1], Chance(draw.integer(0, 2**31))
    counts, num_kept = np.zeros(4), 0
    for _ in range(NUM_RUNS):
        (draft,), q = drafted(answer, small, text, 1, chance)
        p = large.row(text)
        if not 0 < q[0, draft] < math.inf:
            reject(f"token {draft} was drafted, and its row of q gives it {q[0, draft]}")
        if chance.uniform() < min(1, p[draft] / q[0, draft]):
            counts[draft] += 1
            num_kept += 1
        else:
            counts[chance.draw(np.clip(p - q[0], 0, None))] += 1
    found = far_from(counts, large.row(text))
    if found is not None:
        token, share = found
        reject(f"verified by the exact rule, token {token} comes in {share:.1%}; the large model says "
               f"{large.row(text)[token]:.1%}")  # fmt: skip
