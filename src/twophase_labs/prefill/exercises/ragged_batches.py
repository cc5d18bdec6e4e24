"""2.7 Ragged batches: attention over a packed batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, unchanged
from twophase_labs.machine.exercise import cases, exercise

LENGTHS = cases(lengths=((1,), (4,), (3, 4, 5)))

PACKED = exercise(
    "2.10", "Attention over a packed batch", "packed_attention", points=3, minutes=10, lines=4, difficulty=2
)
PACKED.is_extra = True
PACKED.objective = "mask a packed batch from its cumulative lengths"
PACKED.hints = (
    "Write down the owners of the tokens for cu_lens = [0, 3, 7].",
    "Two tokens may meet if they have the same owner, and if the key does not come after the query.",
    "`owner[:, None] == owner` is a square of booleans.",
)

AXES = ("token", "head", "dim")


def packed(
    draw: Draw, lengths: Sequence[int], heads: tuple[int, int] = (6, 2)
) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    width = 5 + sum(lengths) % 6
    q, k, v = (draw.normal(sum(lengths), n, width) for n in (heads[0], heads[1], heads[1]))
    return 4 * q, k, v, torch.tensor([0, *lengths]).cumsum(0).int(), 0.6 * width**-0.5


def one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """A token and a head at a time, in float64."""
    out, first, group = torch.zeros(q.shape, dtype=torch.float64), 0, q.shape[1] // k.shape[1]
    for length in lengths:
        for token in range(first, first + length):
            for head in range(q.shape[1]):
                keys, values = (x[first : token + 1, head // group].double() for x in (k, v))
                out[token, head] = (keys @ q[token, head].double() * scale).softmax(0) @ values
        first += length
    return out.float()


@PACKED.check("returns a vector per token and head", *LENGTHS)
def returns_a_vector_per_head(answer: Any, draw: Draw, lengths: Sequence[int]) -> None:
    """The result is shaped like q. A prompt's length is the difference of two neighbours of cu_lens."""
    q, *rest = packed(draw, lengths)
    got = answer.packed_attention(q, *rest)
    compare(torch.zeros_like(got), torch.zeros_like(q), what="the result", axes=AXES)


@PACKED.check("averages the values", *LENGTHS)
def averages(answer: Any, draw: Draw, lengths: Sequence[int]) -> None:
    """A token's weights add up to 1 over the keys it sees, the last axis; NaN means a token that sees no key, not
    even its own."""
    q, k, v, cu_lens, scale = packed(draw, lengths)
    got = answer.packed_attention(q, k, torch.ones_like(v), cu_lens, scale)
    compare(got, torch.ones_like(q), what="the average of values that are all 1", axes=AXES)


@PACKED.check("keeps prompts apart", lengths=((1, 1), (3, 4, 5)))
def keeps_prompts_apart(answer: Any, draw: Draw, lengths: Sequence[int]) -> None:
    """A key of another prompt must be hidden, even if it comes earlier in the batch."""
    q, k, v, cu_lens, scale = packed(draw, lengths)
    before = answer.packed_attention(q.clone(), k.clone(), v.clone(), cu_lens.clone(), scale)
    first = lengths[0]
    k[:first], v[:first] = draw.normal(*k[:first].shape), draw.normal(*v[:first].shape)
    after = answer.packed_attention(q, k, v, cu_lens, scale)
    what = "the result of a later prompt, with another prompt before it,"
    compare(after[first:], before[first:], what=what, axes=AXES)


@PACKED.check("hides the future", lengths=((2,), (3, 4, 5)))
def hides_the_future(answer: Any, draw: Draw, lengths: Sequence[int]) -> None:
    """Within a prompt, a token sees keys up to and including its own."""
    q, k, v, cu_lens, scale = packed(draw, lengths)
    before = answer.packed_attention(q.clone(), k.clone(), v.clone(), cu_lens.clone(), scale)
    k[-1], v[-1] = draw.normal(*k[-1].shape), draw.normal(*v[-1].shape)
    after = answer.packed_attention(q, k, v, cu_lens, scale)
    compare(after[:-1], before[:-1], what="the result of an earlier token, with another last key and value,", axes=AXES)


@PACKED.check(
    "matches each prompt alone",
    lengths=((1,), (3, 4, 5), (2, 0, 5, 1), (0, 3, 0, 2, 0), (90, 5), (2, 1), (2, 1)),
    heads=((1, 1), (6, 2), (4, 2), (3, 1), (2, 2), (49, 7), (128, 128)),
)
def matches_one_by_one(answer: Any, draw: Draw, lengths: Sequence[int], heads: tuple[int, int]) -> None:
    """The mask is right, so compare heads and scale; and a prompt may have no tokens at all."""
    q, k, v, cu_lens, scale = packed(draw, lengths, heads)
    expected = one_by_one(q, k, v, lengths, scale)
    compare(answer.packed_attention(q, k, v, cu_lens, scale), expected, what="the attention", axes=AXES)


@PACKED.check("works at any level of scores", score=(-100_000, 100_000))
def knows_any_score(answer: Any, draw: Draw, score: int) -> None:
    """What is hidden has a score of minus infinity, and exponents are taken from the largest score."""
    # All scores are alike, hidden ones too: the result is the mean of what is visible.
    _, k, v, cu_lens, _ = packed(draw, (4, 3), (2, 2))
    got = answer.packed_attention(torch.full_like(k, score / k.shape[2]), torch.ones_like(k), v, cu_lens, 1.0)
    parts = [part.cumsum(0) / torch.arange(1, len(part) + 1)[:, None, None] for part in v.split([4, 3])]
    what = f"the mean of the visible values with all scores at {score:,}"
    compare(got, torch.cat(parts), what=what, axes=AXES, atol=1e-4)


@PACKED.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Operations ending in _ write in place."""
    q, k, v, cu_lens, scale = packed(draw, (2, 3))
    with unchanged(q=q, k=k, v=v, cu_lens=cu_lens):
        answer.packed_attention(q, k, v, cu_lens, scale)
