"""2.4 Softmax in one pass."""

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

SIZES = cases(rows=(1, 1, 3, 40), keys=(1, 3, 10, 150))

SOFTMAX = exercise("2.4", "Softmax in one pass", "online_softmax", points=4, minutes=12, lines=9, difficulty=3)
SOFTMAX.objective = "compute softmax attention over keys that are seen once"
SOFTMAX.hints = (
    "Follow two keys by hand, scores 0 and then 3. What is in row_sum and acc after the first, and what must they "
    "be multiplied by once the maximum is 3?",
    "Start with row_max = -inf and both sums 0. row_sum and acc are sums of 2^(score - row_max): when row_max "
    "grows, both shrink by 2^(old - new). As long as a row has seen only -inf, subtract 0 instead of row_max: -inf "
    "less -inf is NaN. In the end divide; where row_sum is 0, divide by 1.",
    "Skeleton:\n"
    "row_max, row_sum, acc = torch.full((M,), -torch.inf), torch.zeros(M), torch.zeros(M, D)\n"
    "for s, v in stream:\n"
    "    new_max = ...\n"
    "    max_safe = new_max.masked_fill(new_max == -torch.inf, 0)\n"
    "    p, rescale = ...      # of this key, and of what was there before\n"
    "    row_sum, acc = ...\n"
    "    row_max = new_max\n"
    "out = ...                 # zeros where row_sum is 0\n"
    "return out, ...",
)

AXES = ("row", "feature")
NUM_READ, MAX_HELD = 500, 130  # keys of a stream, and how many an answer may hold together: a tile of them, not all


def whole_softmax(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means [M, D] and base-2 LSE [M] of base-2 scores [M, S], a row at a time, in float64."""
    out = torch.zeros(scores.shape[0], values.shape[1], dtype=torch.float64)
    lse = torch.full((scores.shape[0],), -math.inf, dtype=torch.float64)
    for row, line in enumerate(scores.double()):
        seen = line > -math.inf
        if bool(seen.any()):
            most = line[seen].max()
            weights = 2 ** (line[seen] - most)
            out[row] = weights @ values.double()[seen] / weights.sum()
            lse[row] = most + torch.log2(weights.sum())
    return out.float(), lse.float()


class Stream:
    """(scores [M], value [D]) of one key after the other, once. Counts how many of them are still alive."""

    def __init__(self, scores: Tensor, values: Tensor) -> None:
        self.scores, self.values = scores, values
        self.most_alive = 0
        self.num_read = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        given: list[weakref.ref[Tensor]] = []
        for column, value in zip(self.scores.mT, self.values, strict=True):
            item = (column.clone(), value.clone())
            given.append(weakref.ref(item[0]))
            self.num_read += 1
            yield item
            del item
            self.most_alive = max(self.most_alive, sum(ref() is not None for ref in given))


def run(answer: Any, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The answer's two results on a stream that can be read once."""
    got = answer.online_softmax(iter(Stream(scores, values)), scores.shape[0], values.shape[1])
    return two_tensors(got, (scores.shape[0], values.shape[1]))


def two_tensors(got: Any, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, Tensor) for x in got)):
        reject("the result is a pair of tensors: the means [M, D] and the LSE [M]", f"got {type(got).__name__}")
    out, lse = got
    if out.shape != shape or lse.shape != shape[:1]:
        reject(
            f"the result has shapes {list(out.shape)} and {list(lse.shape)}, "
            f"expected {list(shape)} and {list(shape[:1])}"
        )
    return out, lse


def random_scores(draw: Draw, rows: int, keys: int) -> tuple[Tensor, Tensor]:
    return 6 * draw.normal(rows, keys), draw.normal(keys, 3 + keys % 4)


@SOFTMAX.check("returns means and LSE", *SIZES)
def returns_means_and_sums(answer: Any, draw: Draw, rows: int, keys: int) -> None:
    """Return the pair (out, lse), of the shapes [M, D] and [M]."""
    run(answer, *random_scores(draw, rows, keys))


@SOFTMAX.check("averages the values", *SIZES)
def averages(answer: Any, draw: Draw, rows: int, keys: int) -> None:
    """acc and row_sum take the same weights and the same rescaling; the mean is one over the other."""
    scores, values = random_scores(draw, rows, keys)
    out, _ = run(answer, scores, torch.ones_like(values))
    compare(out, torch.ones_like(out), what="the mean of values that are all 1", axes=AXES)


@SOFTMAX.check("weighs equal scores alike", keys=(1, 5))
def weighs_alike(answer: Any, draw: Draw, keys: int) -> None:
    """Every key adds its weight to what was there; nothing is lost and nothing there from the start."""
    # Equal scores: a plain mean, and log2 of the number of keys.
    values = draw.normal(keys, 4)
    out, _ = run(answer, torch.zeros(2, keys), values)
    compare(out, values.mean(0).expand(2, -1), what="the mean with equal scores", axes=AXES, any_dtype=True)


@SOFTMAX.check("works in base 2")
def doubles_the_weight(answer: Any, draw: Draw) -> None:
    """A score is an exponent of 2 here: exp2 and log2, not exp and log."""
    # Scores 1 and 0: in base 2 the first key weighs twice as much. The maximum does not change.
    out, _ = run(answer, torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [0.0]]))
    share = float(out[0, 0])
    if abs(share - 2 / 3) > 1e-5:
        near_e = abs(share - math.e / (1 + math.e)) < 1e-5
        reject(
            f"of two keys with scores 1 and 0 the first gets {share:.4f} of the weight, expected 2/3",
            *(["e / (1 + e) = 0.7311: that is base e"] if near_e else []),
        )


@SOFTMAX.check("rescales when the maximum changes")
def any_order(answer: Any, draw: Draw) -> None:
    """When row_max grows, old sums shrink by 2^(old - new): row_sum and acc both. When it stays, the factor is 1."""
    # Rising scores change the maximum at every key, falling ones never.
    values = draw.normal(9, 4)
    for order in (torch.arange(9.0), -torch.arange(9.0)):
        scores = (3 * order).expand(2, -1)
        rising = "rising" if order[1] > 0 else "falling"
        expected, _ = whole_softmax(scores, values)
        what = f"the mean with {rising} scores"
        compare(run(answer, scores, values)[0], expected, what=what, axes=AXES, any_dtype=True)


@SOFTMAX.check("matches a softmax over all keys", *SIZES)
def matches_the_whole(answer: Any, draw: Draw, rows: int, keys: int) -> None:
    """Each key's weight is 2^(its score - row_max), with the maximum of its own row."""
    scores, values = random_scores(draw, rows, keys)
    expected, _ = whole_softmax(scores, values)
    compare(run(answer, scores, values)[0], expected, what="the mean", axes=AXES, any_dtype=True)


@SOFTMAX.check("gives the LSE in base 2", *SIZES)
def gives_the_log_sum(answer: Any, draw: Draw, rows: int, keys: int) -> None:
    """log2 of the sum of 2^score: the part in row_max and the part in row_sum."""
    scores, values = random_scores(draw, rows, keys)
    _, expected = whole_softmax(scores, values)
    compare(run(answer, scores, values)[1], expected, what="the base-2 LSE", axes=("row",), any_dtype=True)


@SOFTMAX.check(
    "survives huge scores",
    {"size": 1000},
    {"size": -1000},
    {"size": 20000},
    {"size": -20000},
    {"size": 1e30, "keys": 1},  # alone: several such would have differences beyond float32
    {"size": -1e30, "keys": 1},
    {"size": -1e35, "keys": 1},
)
def survives_huge_scores(answer: Any, draw: Draw, size: int | float, keys: int = 7) -> None:
    """2^129 does not fit into float32. Exponents are taken relative to the largest score so far, so none is above
    0. The maximum starts at -inf: any other number is larger than some score."""
    scores, values = random_scores(draw, 3, keys)
    scores = scores + size
    out, lse = run(answer, scores, values)
    finite(out, what=f"the mean of scores around {size}", axes=AXES)
    expected = whole_softmax(scores, values)
    what = f"of scores around {size}"
    compare(out, expected[0], what=f"the mean {what}", axes=AXES, rtol=2e-3, atol=2e-3, any_dtype=True)
    compare(lse, expected[1], what=f"the LSE {what}", axes=("row",), any_dtype=True)


@SOFTMAX.check("keeps a maximum for each query", size=(400, 10000))
def keeps_a_maximum_for_each(answer: Any, draw: Draw, size: int) -> None:
    """row_max has an element for each query: [M]. One maximum for all leaves a query with low scores no weight at
    all."""
    # Queries whose scores are far apart: measured from the maximum of another query, all weights would be 0.
    scores, values = random_scores(draw, 3, 7)
    scores = scores + torch.tensor([[0.0], [size], [-size]])
    expected = whole_softmax(scores, values)
    out, lse = run(answer, scores, values)
    what = f"of queries with scores around 0, {size:,} and {-size:,}"
    compare(out, expected[0], what=f"the mean {what}", axes=AXES, rtol=2e-3, atol=2e-3, any_dtype=True)
    compare(lse, expected[1], what=f"the LSE {what}", axes=("row",), any_dtype=True)


@SOFTMAX.check(
    "survives hidden keys", where=("some keys", "the first keys", "all keys of a row", "all keys (there are none)")
)
def survives_hidden_keys(answer: Any, draw: Draw, where: str) -> None:
    """A hidden key has the score -inf. As long as a row saw nothing else, row_max is -inf too: subtract 0 instead
    of row_max there, in every difference. A row that sees nothing at all gives zeros and -inf."""
    scores, values = random_scores(draw, 3, 6)
    if where == "the first keys":
        scores[:, :3] = -math.inf
    elif where == "some keys":
        scores[0, 2], scores[1, 0], scores[2, 5] = (-math.inf,) * 3
    elif where == "all keys of a row":
        scores[1] = -math.inf
    else:
        scores, values = scores[:, :0], values[:0]
    out, lse = run(answer, scores, values)
    expected = whole_softmax(scores, values)
    finite(out, what=f"the mean with {where} hidden", axes=AXES)
    compare(out, expected[0], what=f"the mean with {where} hidden", axes=AXES, any_dtype=True)
    compare(lse, expected[1], what=f"the LSE with {where} hidden", axes=("row",), any_dtype=True)


@SOFTMAX.check("gives what the card says")
def knows_the_worked_examples(answer: Any, draw: Draw) -> None:
    """Two equal keys: the plain mean, and log2 of 2. No key: zeros and -inf."""
    out, lse = run(answer, torch.zeros(1, 2), torch.tensor([[2.0, 0.0], [4.0, 2.0]]))
    compare(out, torch.tensor([[3.0, 1.0]]), what="the mean of two keys with equal scores", axes=AXES, any_dtype=True)
    compare(lse, torch.ones(1), what="the LSE of two keys with scores 0", axes=("row",), any_dtype=True)
    out, lse = run(answer, torch.zeros(1, 0), torch.zeros(0, 2))
    compare(out, torch.zeros(1, 2), what="the mean of no key", axes=AXES, any_dtype=True)
    compare(lse, torch.full((1,), -math.inf), what="the LSE of no key", axes=("row",), any_dtype=True)


@SOFTMAX.check("leaves the stream's tensors alone")
def leaves_the_stream_alone(answer: Any, draw: Draw) -> None:
    """What the stream gives belongs to the caller: `+=` on a tensor writes into it."""
    scores, values = random_scores(draw, 3, 5)
    columns = [column.clone() for column in scores.mT]
    rows = [value.clone() for value in values]
    with unchanged(**{f"score_{i}": c for i, c in enumerate(columns)}, **{f"value_{i}": r for i, r in enumerate(rows)}):
        answer.online_softmax(zip(columns, rows, strict=True), 3, values.shape[1])


@SOFTMAX.check("forgets what it has read")
def forgets(answer: Any, draw: Draw) -> None:
    """Keep row_max, row_sum and acc, and nothing that grows with the number of keys."""
    scores, values = random_scores(draw, 2, NUM_READ)
    stream = Stream(scores, values)
    answer.online_softmax(iter(stream), 2, values.shape[1])
    if stream.most_alive > MAX_HELD:
        reject(
            f"{stream.most_alive} of {stream.num_read} keys were still held at the same time",
            "One pass is meant to need the same memory for a thousand keys as for ten.",
        )


def num_elements_alive() -> int:
    """Elements of all tensors and lists of this process."""
    gc.collect()
    alive = (x for x in gc.get_objects() if type(x) in (list, Tensor))
    return sum(x.numel() if isinstance(x, Tensor) else len(x) for x in alive)


@SOFTMAX.check("keeps no copies either")
def forgets_copies_too(answer: Any, draw: Draw) -> None:
    """Keep row_max, row_sum and acc, and nothing that grows with the number of keys."""
    # What is alive after 50 keys and after 450: copies of 400 keys would be 2,000 elements.
    scores, values = draw.normal(2, 500), draw.normal(500, 3)
    alive: list[int] = []

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for key in range(500):
            yield scores[:, key].clone(), values[key].clone()
            if key in (50, 450):
                alive.append(num_elements_alive())

    answer.online_softmax(stream(), 2, 3)
    if alive[1] - alive[0] > 600:
        reject(
            "what is kept grows with the number of keys, if only as copies",
            f"{alive[1] - alive[0]:,} more elements after 450 keys than after 50",
        )
