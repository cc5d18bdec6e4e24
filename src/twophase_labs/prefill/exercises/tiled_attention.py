"""2.5 Attention, tile by tile."""

import gc
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.prefill.exercises.one_layer import loop_attention
from twophase_labs.prefill.slow_memory import SlowMemory, attention_memory

CASES = cases(
    length=(1, 4, 7, 9, 11, 5, 70, 72), block_q=(1, 4, 4, 2, 4, 8, 33, 70), block_k=(1, 4, 3, 5, 2, 16, 24, 66)
)

TILED = exercise("2.5", "Attention, tile by tile", "tiled_attention", points=4, minutes=8, lines=4, difficulty=2)
TILED.objective = "compute exact attention without the table of scores"
TILED.hints = (
    "Begin with one tile that covers everything (block_q = block_k = L): it must be plain attention. Then two key "
    "tiles.",
    "Blank 2: which two factors turn q · k into an exponent of 2? Blank 3 has a row per query of the tile and a "
    "column per key of *this* tile, `len(k)` of them. Blank 4: what is left to do with acc?",
    "Positions: query row i of the tile stands at start + i, key column j at at + j. The last key tile that a query "
    "tile needs is the one that holds its own last token.",
)

AXES = ("token", "feature")


def tiles(draw: Draw, length: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (draw.normal(length, 5 + length % 8) for _ in range(3))
    return 4 * q, k, v


def run(answer: Any, q: Tensor, k: Tensor, v: Tensor, block_q: int, block_k: int) -> SlowMemory:
    memory = attention_memory(q.clone(), k.clone(), v.clone())
    memory.peek = no_peeking  # type: ignore[method-assign]
    try:
        answer.tiled_attention(memory, len(q), q.shape[1], block_q, block_k)
    except (IndexError, RuntimeError):
        _blame_an_empty_tile(memory, len(q))
        raise
    del memory.peek
    return memory


def _blame_an_empty_tile(memory: SlowMemory, length: int) -> None:
    """What fails after a load past the end is a line that was given."""
    last = memory.transfers[-1] if memory.transfers else None
    if last and last.kind == "load" and last.name in ("k", "v") and last.start >= length:
        reject(
            f"a key tile that begins at {last.start} is loaded, and there are {length} keys: it is empty",
            "the last tile begins before the end of the query tile's own rows",
        )


def no_peeking(name: str) -> Tensor:
    reject(f"`memory.peek({name!r})` reads the whole of {name} uncounted: it is for a look at the result afterwards")


def output(answer: Any, q: Tensor, k: Tensor, v: Tensor, block_q: int, block_k: int) -> Tensor:
    memory = run(answer, q, k, v, block_q, block_k)
    return memory.peek("out")


@TILED.check("stores every row once", *CASES)
def stores_every_row(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """The key tiles end at the query tile's own last row, start + len(q). After them comes one store, at the query
    tile's first row."""
    memory = run(answer, *tiles(draw, length), block_q, block_k)
    stored = [row for t in memory.transfers if t.kind == "store" for row in range(t.start, t.end)]
    for row in range(length):
        if stored.count(row) != 1:
            reject(f"row {row} of the output is stored {stored.count(row)} times, expected once")


@TILED.check("averages the values", *CASES)
def averages(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """The mean is acc / row_sum: is the division in what you store? NaN is 0 / 0: a query that sees no key, not
    even its own; look at which keys are hidden, and where the last key tile begins."""
    q, k, v = tiles(draw, length)
    q = q / 16  # soft weights, so that their sum is far from 1
    out = output(answer, q, k, torch.ones_like(v), block_q, block_k)
    compare(out, torch.ones_like(v), what="the mean of values that are all 1", axes=AXES)


@TILED.check("hides the future", *CASES[1:])
def hides_the_future(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """In a tile on the diagonal some keys are later than some queries. Compare positions in the prompt, not in the
    tile."""
    q, k, v = tiles(draw, length)
    q = q / 16  # soft weights: every key that can be seen is
    before = output(answer, q, k, v, block_q, block_k)
    k[-1], v[-1] = draw.normal(k.shape[1]), draw.normal(v.shape[1])
    after = output(answer, q, k, v, block_q, block_k)
    what = "an earlier token's result, with another last key and value,"
    compare(after[:-1], before[:-1], what=what, axes=AXES)


@TILED.check("sees the past and itself", *CASES)
def sees_the_past_and_itself(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """Every key from 0 to the query's own position, whichever tile it is in. Which tiles does the inner loop visit?"""
    q, k, v = tiles(draw, length)
    means = v.cumsum(0) / torch.arange(1, length + 1)[:, None]
    out = output(answer, torch.zeros_like(q), k, v, block_q, block_k)
    compare(out, means, what="the plain mean of the values so far", axes=AXES)


@TILED.check("gives exact attention", *CASES)
def matches_a_loop(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """Look at the scores: scaled by 1 / sqrt(D), and by log2(e) since exp2 follows. And at rescaling, when a later
    tile has a larger score."""
    q, k, v = tiles(draw, length)
    out = output(answer, q, k, v, block_q, block_k)
    finite(out, axes=AXES)
    expected = loop_attention(q[:, None], k[:, None], v[:, None])[:, 0]
    compare(out, expected, what="the attention", axes=AXES)


@TILED.check("survives huge scores")
def survives_huge_scores(answer: Any, draw: Draw) -> None:
    """Exponents are taken from the largest score so far, of this tile and those before it."""
    q, k, v = tiles(draw, 9)
    q = 300 * q
    out = output(answer, q, k, v, 4, 3)
    finite(out, what="the attention with huge scores", axes=AXES)
    expected = loop_attention(q[:, None], k[:, None], v[:, None])[:, 0]
    compare(out, expected, what="the attention with huge scores", axes=AXES, rtol=1e-2, atol=1e-2)


@TILED.check("moves tiles, never the whole", *CASES)
def loads_tiles(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """What is loaded at once has to fit into fast memory: at most a tile of rows."""
    memory = run(answer, *tiles(draw, length), block_q, block_k)
    for t in memory.transfers:
        limit = block_k if t.name in ("k", "v") else block_q
        if t.end - t.start > limit:
            reject(f"{t.kind}s {t.end - t.start} rows of {t.name} at once; a tile has at most {limit}")
        if t.name in ("scores", "weights"):
            reject(f"{t.kind}s {t.name}: the whole point is that they are never in slow memory")


@TILED.check("leaves out what is hidden", *CASES)
def leaves_out_hidden_tiles(answer: Any, draw: Draw, length: int, block_q: int, block_k: int) -> None:
    """A key tile that begins after the query tile's last token is hidden from all of it: do not load it. And each
    query tile is loaded once."""
    memory = run(answer, *tiles(draw, length), block_q, block_k)
    # The last key tile of a query tile may be loaded whole, or up to the last key that one of its queries sees.
    seen = sum(min(first + block_q, length) for first in range(0, length, block_q))
    whole = sum(
        min(start + block_k, length) - start
        for first in range(0, length, block_q)
        for start in range(0, length, block_k)
        if start < min(first + block_q, length)
    )
    for name, least, most in (("q", length, length), ("k", seen, whole), ("v", seen, whole)):
        got = sum(t.end - t.start for t in memory.transfers if t.kind == "load" and t.name == name)
        if not least <= got <= most:
            reject(
                f"{got} rows of {name} are loaded in all, expected {most}",
                f"{length} tokens, query tiles of {block_q}, key tiles of {block_k}",
            )


@TILED.check("needs little fast memory")
def needs_little_fast_memory(answer: Any, draw: Draw) -> None:
    """Between two key tiles keep row_max, row_sum and acc: no scores, no keys, no values."""
    # Floats alive when the last result is stored: a few tiles, and not the scores of a query tile with all keys.
    length, width, block_q, block_k = 400, 4, 8, 5
    memory = attention_memory(*(draw.normal(length, width) for _ in range(3)))
    before, held, store = floats_alive(), 0, memory.store

    def watched(name: str, start: int, tile: Tensor) -> None:
        nonlocal held
        if start + block_q >= length:
            held = floats_alive() - before
        store(name, start, tile)

    memory.store = watched  # type: ignore[method-assign]
    answer.tiled_attention(memory, length, width, block_q, block_k)
    if held > 2800:
        reject(
            f"{held:,} elements are kept in fast memory for the last tile of {block_q} queries",
            f"its scores with all {length} keys are {block_q * length:,}; a tile of scores has {block_q * block_k}",
        )


def floats_alive() -> int:
    gc.collect()
    return sum(x.numel() for x in gc.get_objects() if type(x) is Tensor and x.is_floating_point())
