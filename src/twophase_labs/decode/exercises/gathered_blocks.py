"""3.6 Paged attention by gathering blocks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from twophase_labs.decode.paged_inputs import PagedInputs, one_hot_values, random_pages
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.checks import Draw, compare, finite, fresh, lasting, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise

LENGTHS = cases(lengths=((1,), (4,), (9, 4, 6)))

PAGED = exercise(
    "3.6", "Attention over gathered blocks", "paged_attention", points=4, minutes=10, lines=9, difficulty=3
)
PAGED.objective = "attend to a sequence whose K and V are scattered over blocks"
PAGED.hints = (
    "For one sequence: which blocks hold its tokens, and how many of the slots in the last one?",
    "`cache[block_ids]` is `[blocks, H_kv, PAGE, D]`: the head is between the two halves of a position. They must "
    "be neighbours before they can become one axis; then cut at the length. A query axis for the group, `[H_kv, G, "
    "D]`, saves copying K and V for each head.",
    "for b, length in enumerate(seq_lens.tolist()):\n    block_ids = block_tables[b, : ...]\n"
    "    k = k_cache[block_ids].transpose(0, 1).flatten(1, 2)[:, :length]\n    v = ...\n"
    "    grouped = q[b].unflatten(0, (-1, group))\n    weights = ...  # [H_kv, G, length]\n    out[b] = ...",
)

AXES = ("sequence", "head", "feature")


def token_by_token(inputs: PagedInputs) -> Tensor:
    """Attention in float64: for each sequence and head a walk over its slots, one at a time."""
    num_kv_heads, page = inputs.k_cache.shape[1:3]
    group = inputs.q.shape[1] // num_kv_heads
    out = torch.zeros(inputs.q.shape, dtype=torch.float64)
    for b, h in [(b, h) for b in range(len(inputs.q)) for h in range(inputs.q.shape[1])]:
        kv_head = [head for head in range(num_kv_heads) for _ in range(group)][h]
        scores, values = [], []
        for slot in inputs.slots(b):
            key = inputs.k_cache[slot // page, kv_head, slot % page].double()
            scores.append(float(inputs.q[b, h].double() @ key) * inputs.scale)
            values.append(inputs.v_cache[slot // page, kv_head, slot % page].double())
        weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
        out[b, h] = sum(float(w) * value for w, value in zip(weights, values, strict=True))
    return out.float()


def draw_inputs(draw: Draw, lengths: Sequence[int], **options: Any) -> PagedInputs:
    return random_pages(lengths, seed=draw.integer(0, 10**6), **options)


@PAGED.check("gives one row per query head", *LENGTHS)
def gives_a_row_per_head(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """The result has the shape of q: per sequence and head a mix of values."""
    inputs = draw_inputs(draw, lengths)
    got = answer.paged_attention(*inputs.arguments)
    if not isinstance(got, Tensor):
        reject(f"the result is {type(got).__name__}, expected a tensor", "Is a `return` missing?")
    if got.shape != inputs.q.shape:
        reject(f"the result has shape {list(got.shape)}, expected that of q, {list(inputs.q.shape)}")


@PAGED.check("reads the right slots", *LENGTHS)
def reads_the_right_slots(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """In the picture each row is a query head, each column a slot. Which columns should be dark? Only written slots
    of the sequence's own blocks."""
    # All KV heads hold the same keys here, so that a wrong head map doesn't matter yet.
    inputs = draw_inputs(draw, lengths, num_blocks=8)
    keys = inputs.k_cache[:, :1].expand_as(inputs.k_cache).contiguous()
    inputs = replace(inputs, q=inputs.q / 4, k_cache=keys, v_cache=one_hot_values(inputs.v_cache))
    expected = token_by_token(inputs)
    got = answer.paged_attention(*inputs.arguments)
    page, heads = inputs.k_cache.shape[2], [f"head {h}" for h in range(inputs.q.shape[1])]
    for b in range(len(lengths)):
        own = inputs.slots(b)
        table = inputs.block_tables[b, : -(-lengths[b] // page)].tolist()
        columns = [block * page + offset for block in table for offset in range(page)]
        columns += [slot for slot in range(32) if slot not in columns]
        names = []
        for slot in columns:
            place = f"block {slot // page}, slot {slot % page}"
            if slot in own:
                names.append(f"position {own.index(slot)} ({place})")
            else:
                names.append(f"{place} ({'nothing written yet' if slot // page in table else 'not its block'})")
        compare_weights(
            got[b][:, columns],
            expected[b][:, columns],
            rows=[f"sequence {b}, {head}" for head in heads],
            columns=names,
            row_axis="query head",
            column_axis="slot: own blocks in order, then the others",
            bounds=range(page, 32, page),
            title=f"weights, {lengths[b]} token{'s' * (lengths[b] != 1)}",
        )


@PAGED.check("shares the right KV heads", group=(1, 3))
def shares_the_right_heads(answer: Any, draw: Draw, group: int) -> None:
    """Neighbours share: query head h reads KV head h // group."""
    inputs = draw_inputs(draw, (6, 3), group=group, num_kv_heads=3)
    v_cache = torch.arange(3.0)[:, None, None].expand_as(inputs.v_cache).contiguous()
    got = answer.paged_attention(*replace(inputs, v_cache=v_cache).arguments)
    for h in range(3 * group):
        expected = [head for head in range(3) for _ in range(group)][h]
        value = float(got[0, h, 0])
        if abs(value - expected) > 1e-3:
            reject(
                f"query head {h} takes its values from KV head {value:.3g}, expected {expected}",
                f"{3 * group} query heads, 3 KV heads; here the values of KV head n are all n",
            )


def fill_unwritten(inputs: PagedInputs, key: float, value: float) -> None:
    """Put these into all slots that hold no sequence's token."""
    page = inputs.k_cache.shape[2]
    held = {slot for b in range(len(inputs.q)) for slot in inputs.slots(b)}
    for slot in range(inputs.k_cache.shape[0] * page):
        if slot not in held:
            inputs.k_cache[slot // page, :, slot % page] = key
            inputs.v_cache[slot // page, :, slot % page] = value


@PAGED.check(
    "keeps unwritten slots out", {"lengths": (1,)}, {"lengths": (7, 13, 4)}, {"lengths": (7, 2), "left": torch.inf}
)
def keeps_the_unwritten_out(answer: Any, draw: Draw, lengths: tuple[int, ...], left: float = torch.nan) -> None:
    """A weight of zero is not enough: 0 times NaN is NaN. Cut what was gathered to the sequence's length."""
    inputs = draw_inputs(draw, lengths)
    expected = token_by_token(inputs)
    fill_unwritten(inputs, left, left)
    got = answer.paged_attention(*inputs.arguments)
    finite(got, what=f"the result, with {left} in slots that hold no token,", axes=AXES)
    compare(got, expected, what=f"the result, with {left} in slots that hold no token,", axes=AXES, atol=1e-4)


@PAGED.check(
    "matches a walk over the slots",
    {"lengths": (1,), "page": 4, "group": 1},
    {"lengths": (5,), "page": 1, "group": 3},
    {"lengths": (16, 17, 1), "page": 16, "group": 3},
    {"lengths": (150, 2), "page": 7, "group": 2},
    {"lengths": (70, 3), "page": 1, "group": 2},
    {"lengths": (90,), "page": 80, "group": 1},
    {"lengths": (3,), "page": 4, "group": 40},
    {"lengths": (700,), "page": 64, "group": 1},
    {"lengths": (3,), "page": 2, "group": 2, "kv_heads": 70},
)
def matches_a_walk(answer: Any, draw: Draw, lengths: tuple[int, ...], page: int, group: int, kv_heads: int = 2) -> None:
    """The right slots and heads are read; look at the scale, and which axis the softmax sums over."""
    inputs = draw_inputs(draw, lengths, page=page, group=group, num_kv_heads=kv_heads)
    inputs = replace(inputs, scale=float(draw.uniform(1, low=0.1, high=0.4)))
    expected = token_by_token(inputs)
    got = answer.paged_attention(*inputs.arguments)
    compare(got, expected, what=f"the result (blocks of {page}, lengths {lengths})", axes=AXES, atol=1e-4)


@PAGED.check("survives any score", score=(1000, -1000, -100_000))
def survives_any_score(answer: Any, draw: Draw, score: int) -> None:
    """e^89 is more than float32 holds: `softmax` takes the maximum out first. And a key that is hidden is left out,
    or scores minus infinity: no other number is low enough."""
    # All scores alike, far from 0: the result is the plain mean of the values. What is unwritten scores the opposite.
    # A mask that takes some constant from the scores of hidden keys lets those in that are far above the others.
    inputs = draw_inputs(draw, (6, 9))
    q = torch.full_like(inputs.q, score / inputs.q.shape[-1])
    inputs = replace(inputs, q=q, k_cache=torch.ones_like(inputs.k_cache), scale=1.0)
    fill_unwritten(inputs, -1.0, 100.0)
    what = f"the result with all scores at {score:,}"
    compare(answer.paged_attention(*inputs.arguments), token_by_token(inputs), what=what, axes=AXES, atol=1e-4)


@PAGED.check("takes slices of larger tensors")
def reads_any_strides(answer: Any, draw: Draw) -> None:
    """`view` needs an order in memory that a slice has not: `reshape` or `flatten` copy where they must."""
    # q as a slice of the projections, K and V as two halves of one tensor, the tables as columns of a wider one.
    inputs = draw_inputs(draw, (6, 9, 1))
    wide = torch.cat([inputs.q, inputs.q.flip(0)], 1)
    both = torch.stack([inputs.k_cache, inputs.v_cache], 3)
    tables = torch.cat([inputs.block_tables, inputs.block_tables.flip(0)], 1)
    q, tables = wide[:, : inputs.q.shape[1]], tables[:, : inputs.block_tables.shape[1]]
    sliced = replace(inputs, q=q, k_cache=both[:, :, :, 0], v_cache=both[:, :, :, 1], block_tables=tables)
    what = "the result for arguments that are slices of larger tensors"
    compare(answer.paged_attention(*sliced.arguments), token_by_token(inputs), what=what, axes=AXES, atol=1e-4)


@PAGED.check("leaves its inputs alone")
def leaves_its_inputs_alone(answer: Any, draw: Draw) -> None:
    """Other sequences read these blocks too, and the output of the layer before is still in use."""
    inputs, others = (draw_inputs(draw, (5, 9)) for _ in range(2))
    fill_unwritten(inputs, torch.nan, torch.inf)
    kept = {name: getattr(inputs, name) for name in ("q", "k_cache", "v_cache", "block_tables", "seq_lens")}
    with unchanged(**kept):
        got = answer.paged_attention(*inputs.arguments)
    fresh(got, **kept)
    with lasting(out=got):
        answer.paged_attention(*others.arguments)
