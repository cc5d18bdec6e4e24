"""2.10 A prompt in chunks: positions, mask, history in pages."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property

NUM_PAGES, HEADS, KV_HEADS, HEAD_DIM, SCALE = 40, 6, 2, 8, 0.5  # the scale is given: it need not be 1 / sqrt(D)
AXES = ("token", "head", "dim")


def prompt(draw: Draw, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v before rotation, and a block table with a page of 3 slots for every position (and one more)."""
    q, k, v = (draw.normal(length, n, HEAD_DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
    return 4 * q, k, v, draw.permutation(NUM_PAGES)[: -(-length // 3) + 1].int()


def turned(x: Tensor, first: int = 0) -> Tensor:
    """RoPE as a product of complex numbers, in float64."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(first, first + len(x), dtype=torch.float64), speeds)[:, None]
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The prompt at once, a token and a head at a time."""
    q, k, v = turned(q), turned(k), v.double()
    out = torch.zeros_like(q)
    for token in range(len(q)):
        for head in range(HEADS):
            keys, values = (x[: token + 1, head // (HEADS // KV_HEADS)] for x in (k, v))
            out[token, head] = (keys @ q[token, head] * SCALE).softmax(0) @ values
    return out.float()


def empty_caches(fill: float = 0.0, page: int = 4) -> tuple[Tensor, Tensor]:
    shape = (NUM_PAGES, KV_HEADS, page, HEAD_DIM)
    return torch.full(shape, fill), torch.full(shape, fill)


def fill_history(caches: tuple[Tensor, Tensor], k: Tensor, v: Tensor, table: Tensor) -> None:
    """As earlier chunks would have left it."""
    for cache, rows in zip(caches, (turned(k).float(), v), strict=True):
        for position, row in enumerate(rows):
            block, offset = divmod(position, cache.shape[2])
            cache[int(table[block]), :, offset] = row


def run(answer: Any, tensors: Sequence[Tensor], caches: tuple[Tensor, Tensor], table: Tensor, cached: int) -> Tensor:
    got = answer.prefill_chunk(*tensors, *caches, table, cached, SCALE)
    if not isinstance(got, Tensor):
        reject(f"a chunk returns its attention, a tensor; this one returned {type(got).__name__}")
    return got


def writes_its_slots(answer: Any, draw: Draw, cached: int, new: int, page: int = 4) -> None:
    q, k, v, table = prompt(draw, cached + new)
    caches, expected = empty_caches(page=page), empty_caches(page=page)
    fill_history(caches, k[:cached], v[:cached], table)
    fill_history(expected, k, v, table)
    run(answer, [x[cached:] for x in (q, k, v)], caches, table, cached)
    for got, wanted, name in zip(caches, expected, ("k_cache", "v_cache"), strict=True):
        compare(got, wanted, what=name, axes=("page", "KV head", "slot", "dim"))


def starts_a_prompt(answer: Any, draw: Draw, new: int) -> None:
    q, k, v, table = prompt(draw, new)
    got = run(answer, (q, k, v), empty_caches(), table, 0)
    compare(got, whole(q, k, v), what="the attention of a first chunk", axes=AXES)


def sees_the_history(answer: Any, draw: Draw, cached: int, new: int, page: int = 4) -> None:
    q, k, v, table = prompt(draw, cached + new)
    caches = empty_caches(page=page)
    fill_history(caches, k[:cached], v[:cached], table)
    got = run(answer, [x[cached:] for x in (q, k, v)], caches, table, cached)
    compare(got, whole(q, k, v)[cached:], what="the attention of a later chunk", axes=AXES)


def chunks_make_the_whole(answer: Any, draw: Draw, chunks: Sequence[int]) -> None:
    q, k, v, table = prompt(draw, sum(chunks))
    caches, rows, cached = empty_caches(), [], 0
    for size in chunks:
        part = [x[cached : cached + size] for x in (q, k, v)]
        rows.append(run(answer, part, caches, table, cached))
        cached += size
    compare(torch.cat(rows), whole(q, k, v), what="the attention of all chunks", axes=AXES)


def keeps_unused_slots_out(answer: Any, draw: Draw, cached: int, new: int) -> None:
    q, k, v, table = prompt(draw, cached + new)
    caches = empty_caches(float("nan"))
    fill_history(caches, k[:cached], v[:cached], table)
    got = run(answer, [x[cached:] for x in (q, k, v)], caches, table, cached)
    finite(got, "the attention, with NaN in all unused slots,", AXES)


def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    q, k, v, table = prompt(draw, 5)
    with unchanged(q=q, k=k, v=v, block_table=table):
        run(answer, (q, k, v), empty_caches(), table, 0)


LATER = (
    {"cached": 1, "new": 1},
    {"cached": 5, "new": 1},
    {"cached": 4, "new": 7},
    {"cached": 6, "new": 5},
    {"cached": 7, "new": 5, "page": 3},
    {"cached": 70, "new": 3, "page": 16},
    {"cached": 70, "new": 3, "page": 80},
)

EXERCISES = (
    Exercise(
        id="2.18",
        title="One chunk of a prompt",
        kind="code",
        names=("prefill_chunk",),
        points=4,
        minutes=15,
        lines=5,
        difficulty=2,
        uses=("2.3", "2.14"),
        objective="prefill in chunks with the same result as in one pass",
        hints=(
            "Take num_cached = 4 and a chunk of 3, and write down positions, slots to write, and slots to read.",
            "The chunk's tokens stand at positions num_cached to num_cached + L - 1, for RoPE, slots and mask alike.",
            "Written are the slots of the chunk; read are those of the whole prompt so far.",
        ),
        checks=(
            Property(
                "writes K and V into their slots",
                writes_its_slots,
                "The chunk's keys, rotated by their positions in the prompt, and its values go to the slots of these "
                "positions, and nothing else changes.",
                (
                    {"cached": 0, "new": 1},
                    {"cached": 0, "new": 6},
                    {"cached": 4, "new": 3},
                    {"cached": 6, "new": 5},
                    LATER[4],
                ),
            ),
            Property(
                "starts a prompt",
                starts_a_prompt,
                "With no history this is plain causal attention: a row sees the keys up to and including its own.",
                ({"new": 1}, {"new": 6}),
            ),
            Property(
                "sees the history",
                sees_the_history,
                "Keys and values of earlier chunks are read from the pages, and every row of this chunk sees them all. "
                "Row i stands at position num_cached + i.",
                LATER,
            ),
            Property(
                "makes a whole of chunks",
                chunks_make_the_whole,
                "One chunk works alone. Does what it leaves in the pages serve the next one?",
                ({"chunks": (1, 1, 1)}, {"chunks": (5, 4)}, {"chunks": (3, 8, 1, 2)}, {"chunks": (70, 30)}),
            ),
            Property(
                "keeps unused slots out",
                keeps_unused_slots_out,
                "Gather the slots of tokens that exist; the rest of the last page may hold anything.",
                ({"cached": 0, "new": 3}, {"cached": 5, "new": 2}),
            ),
            Property("leaves its inputs alone", leaves_inputs_alone, "Only the caches are written to."),
        ),
    ),
)
