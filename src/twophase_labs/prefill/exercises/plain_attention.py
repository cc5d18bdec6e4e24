"""2.1 Attention, written plainly."""

import math
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Matching

AXES = ("token", "feature")


def loop_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A query and a head at a time, over the keys up to its own position, in float64: [L, H, D]."""
    length, num_heads, width = q.shape
    out = torch.zeros(length, num_heads, v.shape[2], dtype=torch.float64)
    for token in range(length):
        for head in range(num_heads):
            keys, values = (x[: token + 1, head].double() for x in (k, v))
            scores = keys @ q[token, head].double() / math.sqrt(width)
            weights = (scores - scores.max()).exp()
            out[token, head] = weights @ values / weights.sum()
    return out.float()


def random_prompt(draw: Draw, length: int, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries are large, so that a few keys get most of the weight: a wrong key then shows."""
    width = 5 + (length + num_heads) % 8
    q, k, v = (draw.normal(length, num_heads, width) for _ in range(3))
    return 4 * q, k, v


def call(answer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The answer's result, which has to be a tensor of the right shape."""
    got = answer.naive_attention(q, k, v)
    length, num_heads, width = q.shape
    if not isinstance(got, Tensor):
        reject(f"the result is {got!r}, expected a tensor", *(["Is a `return` missing?"] if got is None else []))
    if got.shape != (length, num_heads * width):
        reject(
            f"the result has shape {list(got.shape)}, expected {[length, num_heads * width]}",
            f"{length} tokens, {num_heads} heads of {width} numbers, side by side",
        )
    return got


def returns_a_row_per_token(answer: Any, draw: Draw, length: int, num_heads: int) -> None:
    call(answer, *random_prompt(draw, length, num_heads))


def averages(answer: Any, draw: Draw, length: int, num_heads: int) -> None:
    q, k, v = random_prompt(draw, length, num_heads)
    got = call(answer, q, k, torch.ones_like(v))
    compare(got, torch.ones_like(got), what="the average of values that are all 1", axes=AXES)


def hides_the_future(answer: Any, draw: Draw, length: int, num_heads: int) -> None:
    q, k, v = random_prompt(draw, length, num_heads)
    q = q / 16  # soft weights: every key that can be seen is
    before = call(answer, q.clone(), k.clone(), v.clone()).clone()
    k[-1], v[-1] = draw.normal(*k[-1].shape), draw.normal(*v[-1].shape)
    after = call(answer, q, k, v)
    compare(after[:-1], before[:-1], what="an earlier token's result, with another last key and value,", axes=AXES)


def sees_the_past_and_itself(answer: Any, draw: Draw, length: int, num_heads: int, score: int = 0) -> None:
    """All scores are alike, hidden ones too; all heads have the same values, so their order does not matter."""
    q, k, v = random_prompt(draw, length, 1)
    if score:
        k = torch.ones_like(k)
    q, k, v = (x.repeat(1, num_heads, 1) for x in (torch.full_like(q, score / math.sqrt(q.shape[2])), k, v))
    means = v.cumsum(0) / torch.arange(1, length + 1)[:, None, None]
    what = "the plain mean of the values so far"
    compare(call(answer, q, k, v), means.flatten(1), what=what, axes=AXES, atol=1e-4, any_dtype=True)


def keeps_heads_together(answer: Any, draw: Draw, length: int, num_heads: int) -> None:
    """The values of head h are all h: whatever the weights, its D numbers of every token are h."""
    q, k, v = random_prompt(draw, length, num_heads)
    v[:] = torch.arange(num_heads)[:, None]
    expected = v.flatten(1).clone()
    got = call(answer, q, k, v)
    what = "the number of the head that a feature comes from (values of head h are all h)"
    compare(got, expected, what=what, axes=AXES, any_dtype=True)


def matches_a_loop(answer: Any, draw: Draw, length: int, num_heads: int) -> None:
    q, k, v = random_prompt(draw, length, num_heads)
    expected = loop_attention(q, k, v).flatten(1)  # first: the answer might modify its inputs
    got = call(answer, q, k, v)
    finite(got, axes=AXES)
    compare(got, expected, what="the attention", axes=AXES, any_dtype=True)


def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    q, k, v = random_prompt(draw, 3, 2)
    with unchanged(q=q, k=k, v=v):
        answer.naive_attention(q, k, v)


SHAPES = (
    {"length": 1, "num_heads": 1},
    {"length": 4, "num_heads": 1},
    {"length": 3, "num_heads": 3},
    {"length": 7, "num_heads": 2},
    {"length": 90, "num_heads": 1},
    {"length": 2, "num_heads": 49},
)
LEVELS = ({"length": 5, "num_heads": 2, "score": -100_000}, {"length": 5, "num_heads": 2, "score": 100_000})

SEALED = {
    "dot products": "a86ec620e2f03f5c",
    "divide by sqrt(D)": "37cd9c2c512236fe",
    "mask": "2746f2869bed9fc1",
    "softmax": "2c0ed7ce006af054",
    "weights @ v": "63ed0b358465772e",
    "heads side by side, W_O": "5ddb00969caa73f8",
}

EXERCISES = (
    Exercise(
        id="2.1",
        title="Causal attention over a prompt",
        kind="code",
        names=("naive_attention",),
        points=3,
        minutes=10,
        lines=4,
        objective="write attention of all heads over a whole prompt",
        hints=(
            "Give it values of ones: whatever the weights, the result must be ones. Then give head h values that are "
            "all h, and look at where they end up.",
            "After the transpose the first axis counts heads, the second tokens. Scores are [H, query, key]; "
            "a softmax along the wrong axis still has the right shape.",
            "`heads` is [H, L, D]. The D numbers of one head of one token must stay neighbours: bring it back to "
            "[L, H, D] before two axes become one.",
        ),
        checks=(
            Property(
                "returns one row per token",
                returns_a_row_per_token,
                "Each token gets one row, H * D wide: its heads side by side.",
                SHAPES,
            ),
            Property(
                "averages the values",
                averages,
                "A query's weights over its keys add up to 1: softmax over the last axis, the keys. "
                "NaN means a query that sees no key at all, not even its own.",
                SHAPES,
            ),
            Property(
                "keeps the heads apart",
                keeps_heads_together,
                "A reshape never moves numbers, it only cuts the row of all numbers elsewhere. Transpose first, so "
                "that token comes before head.",
                SHAPES,
            ),
            Property(
                "hides the future",
                hides_the_future,
                "A later key must not reach an earlier query. Which of the two aranges is the query's position?",
                SHAPES[1:],
            ),
            Property(
                "sees the past and itself",
                sees_the_past_and_itself,
                "Query i sees the keys 0 to i, its own among them. A hidden score is minus infinity, and exponents are "
                "taken from the largest score: softmax does that.",
                (*SHAPES, *LEVELS),
            ),
            Property(
                "matches a loop over queries and heads",
                matches_a_loop,
                "The right keys are visible, so look at the scores: dot products, over the square root of D.",
                SHAPES,
            ),
            Property("leaves its inputs alone", leaves_inputs_alone, "Operations ending in _ write in place."),
        ),
    ),
    Exercise(
        id="2.2",
        title="What is each step for?",
        kind="matching",
        names=("answer_2_2",),
        points=2,
        minutes=4,
        objective="say what each operation of attention is for",
        hints=(
            "Leave a step out in your mind: what goes wrong without it?",
            "Two steps concern the size of scores and two the mixing of contents. Only one concerns time.",
        ),
        question=Matching("abcdef", SEALED, hint="Leave the step out in your mind. What would go wrong?"),
    ),
)
