"""2.8 A prompt in chunks: positions, mask, history in pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine.checks import Draw, compare, finite, reject, unchanged
from twophase_labs.machine.exercise import exercise

LATER = (
    {"cached": 1, "new": 1},
    {"cached": 5, "new": 1},
    {"cached": 4, "new": 7},
    {"cached": 6, "new": 5},
    {"cached": 7, "new": 5, "page": 3},
    {"cached": 70, "new": 3, "page": 16},
    {"cached": 70, "new": 3, "page": 80},
    {"cached": 4, "new": 3, "heads": (9, 3), "width": 64},
    {"cached": 2, "new": 2, "heads": (4, 4), "width": 2},
    {"cached": 2, "new": 2, "heads": (128, 128), "width": 2},
    {"cached": 5, "new": 0},
)

CHUNK = exercise(
    "2.11", "One chunk of a prompt", "prefill_chunk", points=4, minutes=12, lines=10, difficulty=2, uses=("2.8",)
)
CHUNK.objective = "prefill in chunks with the same result as in one pass"
CHUNK.hints = (
    "Take num_cached = 4 and a chunk of 3, and write down positions, slots to write, and slots to read.",
    "The chunk's tokens stand at positions num_cached to num_cached + L - 1, for RoPE, slots and mask alike.",
    "Skeleton:\n"
    "block_size, seq_len = k_cache.shape[2], ...\n"
    "positions = torch.arange(...)\n"
    "q, k = ...                                     # rotated\n"
    "new = slot_mapping(...)                        # the slots of the chunk\n"
    "k_cache[new // block_size, :, new % block_size] = k\n"
    "...                                            # v likewise\n"
    "old = slot_mapping(...)                        # the slots of the whole prompt so far\n"
    "keys, values = ...                             # [S, H_kv, D], then a KV head for each query head\n"
    "scores = torch.einsum('lhd,shd->hls', q, keys) * scale\n"
    "...                                            # hide what is later than the row's own position",
)

NUM_PAGES = 40
AXES = ("token", "head", "dim")


@dataclass(frozen=True)
class Prompt:
    """q, k, v before rotation, a block table with a page of 3 slots for every position (and one more), and the rest."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    theta: float
    scale: float  # as drawn: it need not be 1 / sqrt(D)

    def part(self, first: int, end: int | None = None) -> list[Tensor]:
        return [x[first:end] for x in (self.q, self.k, self.v)]


def prompt(draw: Draw, length: int, heads: tuple[int, int] = (6, 2), width: int = 8) -> Prompt:
    q, k, v = (draw.normal(length, n, width) for n in (heads[0], heads[1], heads[1]))
    table = draw.permutation(NUM_PAGES)[: -(-length // 3) + 1].int()
    return Prompt(4 * q, k, v, table, float(draw.integer(50, 5000)), draw.integer(21, 90) / 100)


def turned(x: Tensor, theta: float) -> Tensor:
    """RoPE as a product of complex numbers, in float64."""
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float64), speeds)[:, None]
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def whole(p: Prompt) -> Tensor:
    """The prompt at once, a token and a head at a time."""
    q, k, v = turned(p.q, p.theta), turned(p.k, p.theta), p.v.double()
    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for token in range(len(q)):
        for head in range(q.shape[1]):
            keys, values = (x[: token + 1, head // group] for x in (k, v))
            out[token, head] = (keys @ q[token, head] * p.scale).softmax(0) @ values
    return out.float()


def empty_caches(p: Prompt, fill: float = 0.0, page: int = 4) -> tuple[Tensor, Tensor]:
    shape = (NUM_PAGES, p.k.shape[1], page, p.k.shape[2])
    return torch.full(shape, fill), torch.full(shape, fill)


def fill_history(caches: tuple[Tensor, Tensor], p: Prompt, num_tokens: int) -> None:
    """As earlier chunks would have left it."""
    for cache, rows in zip(caches, (turned(p.k, p.theta).float(), p.v), strict=True):
        for position, row in enumerate(rows[:num_tokens]):
            block, offset = divmod(position, cache.shape[2])
            cache[int(p.table[block]), :, offset] = row


def run(answer: Any, p: Prompt, caches: tuple[Tensor, Tensor], first: int, end: int | None = None) -> Tensor:
    q, k, v = (x.clone() for x in p.part(first, end))
    got = answer.prefill_chunk(q, k, v, *caches, p.table, first, p.theta, p.scale)
    if not isinstance(got, Tensor):
        reject(f"a chunk returns its attention, a tensor; this one returned {type(got).__name__}")
    if got.shape != q.shape:
        reject(f"the result has shape {list(got.shape)}, expected the shape of q, {list(q.shape)}")
    return got


@CHUNK.check(
    "writes K and V into their slots",
    {"cached": 0, "new": 1},
    {"cached": 0, "new": 6},
    {"cached": 4, "new": 3},
    {"cached": 6, "new": 5},
    LATER[4],
    {"cached": 5, "new": 4, "stale": math.nan},
)
def writes_its_slots(
    answer: Any,
    draw: Draw,
    cached: int,
    new: int,
    page: int = 4,
    heads: tuple[int, int] = (6, 2),
    width: int = 8,
    stale: float = 0.0,
) -> None:
    """The chunk's keys, rotated by their positions in the prompt, and its values go to the slots of these
    positions, and nothing else changes: the other slots, of its own blocks too, are not yours to clear. The caches
    are [N, H_kv, block_size, D]: heads before slots, so a slot is no row of a `view`."""
    # The whole pool after the call: in the other slots are other prompts', and in some perhaps `stale`.
    p = prompt(draw, cached + new, heads, width)
    caches = (draw.normal(*empty_caches(p, page=page)[0].shape), draw.normal(*empty_caches(p, page=page)[1].shape))
    for cache in caches:
        cache[draw.permutation(NUM_PAGES)[:9]] += stale
    expected = (caches[0].clone(), caches[1].clone())
    fill_history(caches, p, cached)
    fill_history(expected, p, cached + new)
    run(answer, p, caches, cached)
    for got, wanted, name in zip(caches, expected, ("k_cache", "v_cache"), strict=True):
        compare(got, wanted, what=name, axes=("block", "KV head", "slot", "dim"))


@CHUNK.check("starts a prompt", new=(1, 6))
def starts_a_prompt(answer: Any, draw: Draw, new: int) -> None:
    """With no history this is plain causal attention: a row sees the keys up to and including its own. Use the
    scale and the theta that you are given."""
    p = prompt(draw, new)
    got = run(answer, p, empty_caches(p), 0)
    compare(got, whole(p), what="the attention of a first chunk", axes=AXES, any_dtype=True)


@CHUNK.check("sees the history", *LATER)
def sees_the_history(
    answer: Any, draw: Draw, cached: int, new: int, page: int = 4, heads: tuple[int, int] = (6, 2), width: int = 8
) -> None:
    """Keys and values of earlier chunks are read from the cache, and every row of this chunk sees them all. Row i
    stands at position num_cached + i."""
    p = prompt(draw, cached + new, heads, width)
    caches = empty_caches(p, page=page)
    fill_history(caches, p, cached)
    got = run(answer, p, caches, cached)
    compare(got, whole(p)[cached:], what="the attention of a later chunk", axes=AXES, any_dtype=True)


@CHUNK.check("makes a whole of chunks", chunks=((1, 1, 1), (5, 4), (3, 8, 1, 2), (70, 30)))
def chunks_make_the_whole(answer: Any, draw: Draw, chunks: Sequence[int]) -> None:
    """One chunk works alone. Does what it leaves in the cache serve the next one?"""
    p = prompt(draw, sum(chunks))
    caches, rows, cached = empty_caches(p), [], 0
    for size in chunks:
        rows.append(run(answer, p, caches, cached, cached + size))
        cached += size
    compare(torch.cat(rows), whole(p), what="the attention of all chunks", axes=AXES, any_dtype=True)


@CHUNK.check("keeps unused slots out", cached=(0, 5), new=(3, 2))
def keeps_unused_slots_out(answer: Any, draw: Draw, cached: int, new: int) -> None:
    """Gather the slots of tokens that exist; the rest of the last block may hold anything."""
    p = prompt(draw, cached + new)
    caches = empty_caches(p, float("nan"))
    fill_history(caches, p, cached)
    got = run(answer, p, caches, cached)
    finite(got, "the attention, with NaN in all unused slots,", AXES)


@CHUNK.check("works at any level of scores", score=(-100_000, 100_000))
def works_at_any_level(answer: Any, draw: Draw, score: int) -> None:
    """A hidden key has a score of minus infinity, and softmax takes the largest score out first."""
    # One element a vector and position 0 for rotation's sake: all scores are alike, hidden ones too.
    p = prompt(draw, 5, heads=(2, 2))
    p = replace(p, q=torch.full_like(p.q, score / 8), k=torch.ones_like(p.k), theta=1e30, scale=1.0)
    p.q[..., [0, 4]], p.k[..., [0, 4]] = 0.0, 0.0  # the one pair that turns
    got = run(answer, p, empty_caches(p), 0)
    means = p.v.cumsum(0) / torch.arange(1, 6)[:, None, None]
    what = f"the mean of the visible values with all scores at {score * 6 // 8:,}"
    # An answer by LSE has weights of 2^(score - LSE): at 75,000 float32 rounds both to 1/128.
    compare(got, means, what=what, axes=AXES, rtol=0.02, atol=0.02, any_dtype=True)


@CHUNK.check("gives what the card says")
def knows_the_example(answer: Any, draw: Draw) -> None:
    """One token, alone in block 1: its own value comes back."""
    one, (k_cache, v_cache) = torch.ones(1, 1, 2), torch.zeros(2, 2, 1, 4, 2)
    got = answer.prefill_chunk(one, one, 5 * one, k_cache, v_cache, torch.tensor([1, 0]), 0, 100.0, 1.0)
    compare(got, 5 * one, what="the example's attention", axes=AXES, any_dtype=True)
    compare(v_cache[1, 0, 0], torch.tensor([5.0, 5.0]), what="v_cache[1, 0, 0] of the example", axes=("dim",))


@CHUNK.check("leaves its inputs alone")
def leaves_inputs_alone(answer: Any, draw: Draw) -> None:
    """Only the caches are written to."""
    p = prompt(draw, 5)
    with unchanged(q=p.q, k=p.k, v=p.v, block_table=p.table):
        answer.prefill_chunk(p.q, p.k, p.v, *empty_caches(p), p.table, 0, p.theta, p.scale)
