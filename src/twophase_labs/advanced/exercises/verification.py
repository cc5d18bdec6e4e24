"""Speculative decoding: verification that leaves the distribution as it is."""

import math
from typing import Any

import numpy as np

from twophase_labs.advanced.draft_chance import Chance, counts_at, run_passes
from twophase_labs.machine.checks import Draw, amount, reject
from twophase_labs.machine.exercise import exercise

PLACES = tuple(
    {"vocab_size": vocab_size, "place": place, "is_lookup": is_lookup}
    for vocab_size, place, is_lookup in ((2, 0, False), (5, 0, False), (5, 0, True), (4, 1, False), (4, 2, False))
)

VERIFY = exercise(
    "5.5", "Accept, or draw from what is left", "verify", points=3, minutes=12, lines=4, difficulty=3, time_limit_s=30
)
VERIFY.objective = "verify drafts so that nobody can tell from the output that there were any"
VERIFY.hints = (
    "A token that the draft says less often than the model may always be kept. One that it says twice as often as "
    "the model may be kept every second time.",
    "So keep it with probability min(1, p/q). What is missing from p then is where p is larger than q: the "
    "replacement is drawn in proportion to max(p - q, 0).",
    "tokens = []\nfor i, token in enumerate(draft):\n    if chance.uniform() >= ...:  # not kept\n"
    "        return [*tokens, chance.draw(...)]  # from what p has more of\n    tokens.append(token)\n"
    "return [*tokens, chance.draw(...)]  # the row behind the last",
)


# Right answers exceed it once in ten million cells; a bias of two percentage points is far beyond at 10,000 passes.
FAR = 5.4


NUM_PASSES = 10_000


def rows(draw: Draw, num_rows: int, vocab_size: int) -> np.ndarray:
    """Distributions with likely and unlikely tokens."""
    weights = np.exp(1.5 * draw.normal(num_rows, vocab_size).double().numpy())
    return weights / weights.sum(axis=1, keepdims=True)


def unlike_rows(draw: Draw, num_rows: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two such, which agree in half to three quarters of each row: enough of either way for a bias to show."""
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    while len(pairs) < num_rows:
        one, other = rows(draw, 2, vocab_size)
        if 0.5 <= np.minimum(one, other).sum() <= 0.75:
            pairs.append((one, other))
    return np.stack([one for one, _ in pairs]), np.stack([other for _, other in pairs])


def passes(answer: Any, draw: Draw, p: np.ndarray, q: np.ndarray, num_passes: int) -> list[list[int]]:
    seed = draw.integer(0, 2**31)
    outputs = run_passes(answer.verify, p, q, num_passes, seed)
    for tokens in outputs:
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= len(q) + 1:
            reject(
                f"a pass over {amount(len(q), 'draft')} gave {tokens!r}, expected a list of 1 to {len(q) + 1} tokens"
            )
    return outputs


def far_from(counts: np.ndarray, expected: np.ndarray) -> tuple[int, float] | None:
    """The cell that is further off than chance explains, and its share; None if none is."""
    total = counts.sum()
    for token, (count, share) in enumerate(zip(counts, expected, strict=True)):
        # The 3 is for shares near 0, of which counts are not normally distributed.
        if abs(count - total * share) > FAR * math.sqrt(total * share * (1 - share)) + 3:
            return token, count / total
    return None


@VERIFY.check("keeps drafts in front", num_draft=(1, 4, 12))
def keeps_drafts_in_front(answer: Any, draw: Draw, num_draft: int) -> None:
    """A pass yields the drafts up to the first that is rejected, then one token that is drawn."""
    p, q = rows(draw, num_draft + 1, 5), rows(draw, num_draft, 5)
    if num_draft > 4:
        p[:-1] = 0.02 * p[:-1] + 0.98 * q  # so that many are kept
    before = p.copy(), q.copy()
    chance = Chance(draw.integer(0, 2**31))
    for _ in range(200):
        draft = [chance.draw(row) for row in q]
        mine = list(draft)
        tokens = answer.verify(mine, p, q, chance)
        if mine != draft or not (np.array_equal(p, before[0]) and np.array_equal(q, before[1])):
            reject("the call modified its input, draft, p or q", "They are needed again: make new lists and arrays.")
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= num_draft + 1:
            over = f"a pass over {amount(num_draft, 'draft')}"
            reject(f"{over} gave {tokens!r}, expected a list of 1 to {num_draft + 1} tokens")
        if tokens[:-1] != draft[: len(tokens) - 1]:
            reject(f"the drafts {draft} gave {tokens}: all but its last token must be drafts, the first ones in order")


@VERIFY.check("accepts a draft that says the same", num_draft=(1, 3, 12, 70))
def accepts_its_own(answer: Any, draw: Draw, num_draft: int) -> None:
    """Where p and q are equal, p/q is 1, and no number in [0, 1) is rejected. And then one more is drawn."""
    p = rows(draw, num_draft + 1, 6)
    for tokens in passes(answer, draw, p, p[:num_draft].copy(), 300 if num_draft < 20 else 5):
        if len(tokens) != num_draft + 1:
            reject(
                f"draft and model say the same, and a pass over {amount(num_draft, 'draft')} gave "
                f"{amount(len(tokens), 'token')}, expected {num_draft + 1}"
            )


@VERIFY.check("never says what the model never says")
def never_says_the_impossible(answer: Any, draw: Draw) -> None:
    """p of the draft's token may be 0: then it must be rejected, however sure the draft was. And what replaces it
    must be possible under p."""
    p, q = rows(draw, 3, 6), rows(draw, 2, 6)
    p[:, [1, 4]] = 0
    p /= p.sum(axis=1, keepdims=True)
    for tokens in passes(answer, draw, p, q, 2_000):
        if {1, 4} & set(tokens):
            reject(f"a pass gave {tokens}, and the model says that tokens 1 and 4 are impossible")


@VERIFY.check(
    "works where nothing is left to chance",
    wanted=((2, 3, 1), (0, 0, 29, 7, 5, 1, 0)),
    drafted=((2, 0), (0, 0, 29, 7, 5, 2)),
)
def works_without_chance(answer: Any, draw: Draw, wanted: tuple[int, ...], drafted: tuple[int, ...]) -> None:
    """One-hot rows: drafts are right up to one that is not, and the model's token takes its place."""
    # One-hot drafts, as a lookup makes them; one-hot models, as temperature 0 makes them.
    p, q = np.eye(30)[list(wanted)], np.eye(30)[list(drafted)]
    num_kept = next((i for i, token in enumerate(drafted) if token != wanted[i]), len(drafted))
    expected = list(wanted[: num_kept + 1])
    for tokens in passes(answer, draw, p, q, 20):
        if tokens != expected:
            reject(f"the model wants {wanted} without a doubt, the draft was {drafted}: the pass gave {tokens}, "
                   f"expected {expected}")  # fmt: skip


@VERIFY.check("draws the last token from the model", num_draft=(1, 2))
def draws_the_bonus(answer: Any, draw: Draw, num_draft: int) -> None:
    """All drafts accepted: the next token comes from the row behind the last of them, p[len(draft)]."""
    # The token after drafts that were all accepted.
    p = rows(draw, num_draft + 1, 4)
    outputs = passes(answer, draw, p, p[:num_draft].copy(), NUM_PASSES // 2)
    found = far_from(counts_at(outputs, num_draft, 4), p[num_draft])
    if found is not None:
        token, share = found
        reject(
            f"after {amount(num_draft, 'accepted draft')} token {token} comes in {share:.1%} of the passes, and the "
            f"model's row says {p[num_draft, token]:.1%}"
        )


@VERIFY.check("takes long runs")
def takes_long_runs(answer: Any, draw: Draw) -> None:
    """If all drafts are right, however many, one more token comes, from p[len(draft)]."""
    # All drafts are right, and the token behind them is that of the last row.
    num_drafts = draw.integer(65, 90)
    wanted = draw.integers(0, 30, num_drafts + 1).tolist()
    wanted[-1] = next(token for token in range(30) if token not in wanted[-1:] + wanted[60:70])
    works_without_chance(answer, draw, tuple(wanted), tuple(wanted[:-1]))


@VERIFY.check("keeps the distribution", *PLACES)
def keeps_the_distribution(answer: Any, draw: Draw, vocab_size: int, place: int, is_lookup: bool) -> None:
    """Add up the two ways in which a token x can come: accepted, q(x) min(1, p(x)/q(x)), or drawn after a
    rejection. The sum must be p(x)."""
    num_draft = place + 1
    p, q = unlike_rows(draw, num_draft, vocab_size)
    p = np.concatenate([p, rows(draw, 1, vocab_size)])
    if is_lookup:
        q = np.eye(vocab_size)[p[:num_draft].argmax(axis=1)]
    p[:place] = (p[:place] + q[:place]) / 2  # so that most passes get to the place that is looked at
    outputs = passes(answer, draw, p, q, NUM_PASSES)
    counts = counts_at(outputs, place, vocab_size)
    found = far_from(counts, p[place])
    if found is not None:
        token, share = found
        reject(
            f"token {token} comes at place {place} in {share:.1%} of {counts.sum():,} passes, and the model says "
            f"{p[place, token]:.1%}",
            f"model {p[place].round(3).tolist()}",
            f"draft {q[place].round(3).tolist()}",
            f"came  {(counts / counts.sum()).round(3).tolist()}",
        )


@VERIFY.check("accepts as often as possible")
def accepts_as_often_as_possible(answer: Any, draw: Draw) -> None:
    """Exact, and useless if it rejects more than it has to: min(1, p/q) is the most that can be accepted."""
    p, q = unlike_rows(draw, 1, 6)
    p = np.concatenate([p, rows(draw, 1, 6)])
    outputs = passes(answer, draw, p, q, NUM_PASSES // 2)
    share = float(np.minimum(p[0], q[0]).sum())
    accepted = sum(1 for tokens in outputs if len(tokens) == 2)
    if far_from(np.array([accepted, len(outputs) - accepted]), np.array([share, 1 - share])) is not None:
        reject(
            f"{accepted / len(outputs):.1%} of the drafts were accepted; {share:.1%} can be without changing the "
            f"distribution",
            f"model {p[0].round(3).tolist()}",
            f"draft {q[0].round(3).tolist()}",
        )
