"""3.14 Mixed precision: recent tokens in fp16, older ones in int8."""

from typing import Any

from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, integer, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

COUNTS = cases(tokens=(5, 4, 3, 2, 5), recent=(2, 0, 3, 9, 7))
MANY = {"tokens": 700, "recent": 130}

MIXED = exercise(
    "3.14", "Recent tokens in fp16, older ones in int8", "store_mixed", points=3, minutes=9, lines=6, difficulty=2
)
MIXED.time_limit_s, MIXED.uses, MIXED.is_extra = 10, ("3.13",), True
MIXED.objective = "keep the tokens that matter most at full precision, and count what that costs"
MIXED.hints = (
    "Five tokens, two of them recent: which rows of x go through `quantise`, which through `.half()`?",
    "The first recent token is at `max(0, T - num_recent)`. `x[-num_recent:]` is everything if that is 0.",
    "first = max(0, len(x) - num_recent)\ndata, scale = quantise(x[:first])\nrecent = ...\n"
    "read = torch.cat([dequantise(data, scale), ...])\nnum_bytes = data.nbytes + ...\nreturn read, num_bytes",
)

AXES = ("token", "head", "element")


def rows(draw: Draw, tokens: int, heads: int, dim: int) -> Tensor:
    return draw.normal(tokens, heads, dim) * draw.uniform(tokens, heads, 1, low=0.1, high=20)


def stored(answer: Any, x: Tensor, num_recent: int) -> tuple[Tensor, Any]:
    got = answer.store_mixed(x.clone(), num_recent)
    if not isinstance(got, tuple | list) or len(got) != 2:
        reject("store_mixed returns two things, what is read and the number of bytes", f"got {type(got).__name__}")
    read = got[0]
    if not isinstance(read, Tensor) or read.shape != x.shape:
        shape = list(read.shape) if isinstance(read, Tensor) else type(read).__name__
        reject(f"what is read has shape {shape}, expected that of x, {list(x.shape)}")
    return read.float(), got[1]


@MIXED.check("reads every token", *COUNTS)
def gives_the_shape(answer: Any, draw: Draw, tokens: int, recent: int) -> None:
    """Older tokens first, recent ones after them: as many rows as x has, also if one part is empty."""
    read, _ = stored(answer, rows(draw, tokens, 2, 5), recent)
    finite(read, "what is read", AXES)


@MIXED.check("keeps recent tokens in fp16", *COUNTS, MANY)
def keeps_recent_tokens(answer: Any, draw: Draw, tokens: int, recent: int) -> None:
    """The *last* num_recent tokens go through float16 and nothing else; all of them, if there are not more."""
    x = rows(draw, tokens, 2, 9)
    read, _ = stored(answer, x, recent)
    first = max(0, tokens - recent)
    what = f"the last {min(recent, tokens)} of {tokens} tokens, rounded to fp16,"
    compare(read[first:], x[first:].half().float(), what=what, axes=AXES)


@MIXED.check(
    "keeps older tokens in int8",
    *tuple({**case, "dim": dim} for case, dim in zip((*COUNTS, MANY), (4, 16, 1, 8, 3, 24), strict=True)),
)
def rounds_older_tokens(answer: Any, draw: Draw, tokens: int, recent: int, dim: int) -> None:
    """All tokens before the recent ones go through `quantise` and `dequantise`. (With num_recent = 0, `x[:-0]` is
    empty: cut at T - num_recent.)"""
    x = rows(draw, tokens, 3, dim)
    read, _ = stored(answer, x, recent)
    first = max(0, tokens - recent)
    step = x[:first].abs().amax(-1, keepdim=True) / 127
    expected = (x[:first] / step).round() * step
    off = (read[:first] - expected).abs() / step
    if first and float(off.max()) > 0.01:
        token, head, at = (off == off.max()).nonzero()[0].tolist()
        reject(
            f"token {token}, head {head}, element {at}: {float(x[token, head, at]):.5g} is read as "
            f"{float(read[token, head, at]):.5g}, expected {float(expected[token, head, at]):.5g}",
            f"{tokens} tokens, the last {recent} of them recent; older ones are in int8, a scale per token and head",
        )


@MIXED.check(
    "counts the bytes",
    *tuple(
        {**case, "heads": heads, "dim": dim}
        for case, heads, dim in zip((*COUNTS, MANY), (1, 3, 2, 2, 4, 5), (2, 16, 7, 1, 9, 64), strict=True)
    ),
)
def counts_bytes(answer: Any, draw: Draw, tokens: int, recent: int, heads: int, dim: int) -> None:
    """Recent: 2 bytes an element. Older: 1 byte an element, and 4 for a float32 scale per token and head."""
    _, returned = stored(answer, rows(draw, tokens, heads, dim), recent)
    num_recent = min(tokens, recent)
    expected = 2 * num_recent * heads * dim + (tokens - num_recent) * heads * (dim + 4)
    got = integer(returned)
    what = f"the bytes of {tokens} tokens, {num_recent} of them recent, with {heads} heads of {dim} elements,"
    compare(got if got is not None else returned, expected, what=what)


@MIXED.check("leaves x alone")
def leaves_x_alone(answer: Any, draw: Draw) -> None:
    """Assignments to a part of x write into the caller's tensor."""
    x = rows(draw, 6, 2, 8)
    with unchanged(x=x):
        answer.store_mixed(x, 2)
