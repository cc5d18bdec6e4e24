"""5.6 Prefill here, decode there: pages that change hands."""

from collections.abc import Sequence
from typing import Any

import torch

from twophase.cache.kv_cache import LayerKV
from twophase_labs.advanced.pages_pools import empty_layer, place, random_blocks, stored, token_rows
from twophase_labs.advanced.pages_shares import moving_share_percent
from twophase_labs.machine.checks import Draw, Rejected, compare, fresh, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Number

NUM_BLOCKS = 24
PARTS = ("K", "V", "the scales of K", "the scales of V")


def a_sequence(draw: Draw, num_tokens: int, page: int, quantised: bool) -> tuple[LayerKV, list[int], list[Any]]:
    """A layer in which a sequence lies on random pages; its block ids, and what each token has."""
    layer, rows = empty_layer(NUM_BLOCKS, page, quantised), token_rows(draw, num_tokens, quantised)
    block_ids = random_blocks(draw, num_tokens, page, NUM_BLOCKS)
    place(layer, block_ids, rows)
    return layer, block_ids, rows


def taken(answer: Any, layer: LayerKV, block_ids: Sequence[int], num_tokens: int) -> list[Any]:
    theirs = list(block_ids)
    with unchanged(block_ids=theirs):
        message = answer.take_layer(layer, theirs, num_tokens)
    if not isinstance(message, list | tuple) or not all(isinstance(part, torch.Tensor) for part in message):
        reject(f"the message is {type(message).__name__}, expected a list of tensors")
    return list(message)


def takes_tokens_in_order(answer: Any, draw: Draw, num_tokens: int, page: int) -> None:
    layer, block_ids, rows = a_sequence(draw, num_tokens, page, quantised=False)
    with unchanged(k=layer.k, v=layer.v):
        message = taken(answer, layer, block_ids, num_tokens)
    where = f"{num_tokens} tokens in pages of {page}, blocks {block_ids}"
    try:
        for got, expected, what in zip(message, rows, PARTS, strict=False):
            compare(got, expected, what=f"{what} of the message", axes=("token", "KV head", "dim"))
    except Rejected as error:
        reject(str(error), *error.details, where)
    if len(message) < 2:
        reject(f"the message has {len(message)} tensor, expected K and V")


def takes_the_scales(answer: Any, draw: Draw, num_tokens: int, page: int) -> None:
    layer, block_ids, rows = a_sequence(draw, num_tokens, page, quantised=True)
    message = taken(answer, layer, block_ids, num_tokens)
    if len(message) != len(rows):
        reject(f"an int8 layer gave {len(message)} tensors, expected 4: K, V and the scales of each")
    for got, expected, what in zip(message, rows, PARTS, strict=True):
        compare(got, expected, what=f"{what} of the message", axes=("token", "KV head", "dim")[: expected.ndim])


def takes_a_copy(answer: Any, draw: Draw, num_tokens: int, page: int) -> None:
    layer, block_ids, _ = a_sequence(draw, num_tokens, page, quantised=False)
    for part in taken(answer, layer, block_ids, num_tokens):
        fresh(part, k=layer.k, v=layer.v)


def put(answer: Any, draw: Draw, num_tokens: int, page: int, quantised: bool) -> tuple[LayerKV, list[int], list[Any]]:
    layer, rows = empty_layer(NUM_BLOCKS, page, quantised), token_rows(draw, num_tokens, quantised)
    block_ids = random_blocks(draw, num_tokens, page, NUM_BLOCKS)
    theirs, message = list(block_ids), [row.clone() for row in rows]
    with unchanged(block_ids=theirs, **{f"part_{at}": part for at, part in enumerate(message)}):
        answer.put_layer(layer, theirs, message)
    return layer, block_ids, rows


def puts_them_where_the_table_says(answer: Any, draw: Draw, num_tokens: int, page: int, quantised: bool) -> None:
    layer, block_ids, rows = put(answer, draw, num_tokens, page, quantised)
    for pages, values, what in zip(stored(layer), rows, PARTS, strict=False):
        for position, value in enumerate(values):
            block, offset = block_ids[position // page], position % page
            compare(
                pages[block, :, offset],
                value,
                what=f"{what} of token {position} (block {block}, offset {offset}, of blocks {block_ids})",
                axes=("KV head", "dim")[: value.ndim],
            )


def leaves_other_slots_alone(answer: Any, draw: Draw, num_tokens: int, page: int, quantised: bool) -> None:
    layer, block_ids, rows = put(answer, draw, num_tokens, page, quantised)
    expected = empty_layer(NUM_BLOCKS, page, quantised)
    place(expected, block_ids, rows)
    for got, wanted, what in zip(stored(layer), stored(expected), PARTS, strict=False):
        axes = ("block", "KV head", "offset", "dim")[: wanted.ndim]
        compare(got, wanted, what=f"the pages of {what}, {num_tokens} tokens in blocks {block_ids},", axes=axes)


def between_page_sizes(answer: Any, draw: Draw, num_tokens: int, source: int, target: int, quantised: bool) -> None:
    layer, block_ids, rows = a_sequence(draw, num_tokens, source, quantised)
    there, other_ids = empty_layer(NUM_BLOCKS, target, quantised), random_blocks(draw, num_tokens, target, NUM_BLOCKS)
    answer.put_layer(there, list(other_ids), taken(answer, layer, block_ids, num_tokens))
    expected = empty_layer(NUM_BLOCKS, target, quantised)
    place(expected, other_ids, rows)
    for got, wanted, what in zip(stored(there), stored(expected), PARTS, strict=False):
        axes = ("block", "KV head", "offset", "dim")[: wanted.ndim]
        compare(got, wanted, what=f"after a hand-over from pages of {source} to pages of {target}, {what}", axes=axes)


def transfer_ms() -> float:
    """8,000 tokens of 80 layers, 8 KV heads of 128, K and V of 2 bytes, over 400 Gbit/s."""
    return 1e3 * 8000 * (2 * 80 * 8 * 128 * 2) / (400e9 / 8)


EXERCISES = (
    Exercise(
        id="5.18",
        title="Pages change hands",
        kind="code",
        names=("slots_of", "take_layer", "put_layer"),
        points=3,
        minutes=12,
        lines=5,
        difficulty=2,
        objective="move a prompt's K and V between pools whose pages have other numbers",
        hints=(
            "Position p is on the sequence's page number p // page, which is *which* block of the pool?",
            "With two index tensors of T elements each, `pages[blocks, :, offsets]` is [T, H_kv, D]: a row per token.",
            "The same expression on the left of an `=` writes the rows back, into other blocks.",
        ),
        checks=(
            Property(
                "takes the tokens in their order",
                takes_tokens_in_order,
                "The block table is in the sequence's order, the pool is not: look the block up, then the offset in "
                "it. And the last page may hold fewer tokens than fit.",
                (
                    {"num_tokens": 1, "page": 4},
                    {"num_tokens": 4, "page": 4},
                    {"num_tokens": 10, "page": 4},
                    {"num_tokens": 23, "page": 2},
                    {"num_tokens": 139, "page": 6},
                    {"num_tokens": 90, "page": 80},
                ),
            ),
            Property(
                "takes the scales too",
                takes_the_scales,
                "An int8 layer is worth nothing without its scales, one per token and head; `k_scale` and `v_scale` "
                "are None otherwise.",
                ({"num_tokens": 3, "page": 4}, {"num_tokens": 9, "page": 4}),
            ),
            Property(
                "takes a copy",
                takes_a_copy,
                "The pages are free as soon as they are taken, and the next prompt is written over them; a view would "
                "see that happen, in the middle of the transfer.",
                ({"num_tokens": 4, "page": 4},),
            ),
            Property(
                "puts them where the table says",
                puts_them_where_the_table_says,
                "The pages there have numbers of their own; position p goes to block_ids[p // page], offset p % page.",
                (
                    {"num_tokens": 3, "page": 4, "quantised": False},
                    {"num_tokens": 11, "page": 4, "quantised": False},
                    {"num_tokens": 11, "page": 4, "quantised": True},
                ),
            ),
            Property(
                "leaves all other slots alone",
                leaves_other_slots_alone,
                "The other blocks are other people's, and the rest of the last page is not yours yet.",
                ({"num_tokens": 6, "page": 4, "quantised": False}, {"num_tokens": 13, "page": 8, "quantised": True}),
            ),
            Property(
                "goes between pools of different pages",
                between_page_sizes,
                "What travels is tokens, so neither side needs to know the other's pages: each looks at its own "
                "`layer.k.shape`.",
                (
                    {"num_tokens": 10, "source": 4, "target": 4, "quantised": False},
                    {"num_tokens": 10, "source": 8, "target": 2, "quantised": False},
                    {"num_tokens": 13, "source": 2, "target": 8, "quantised": True},
                    {"num_tokens": 100, "source": 12, "target": 5, "quantised": False},
                ),
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="5.19",
        title="On the wire",
        kind="numeric",
        names=("answer_5_19",),
        points=1,
        minutes=3,
        objective="turn a prompt into milliseconds of network",
        question=Number(
            transfer_ms,
            rel=0.02,
            unit="ms",
            hint="Bytes per token as in lab 1, times tokens; and a link of 400 Gbit/s carries how many bytes?",
        ),
    ),
    Exercise(
        id="5.20",
        title="Is moving worth it?",
        kind="prediction",
        names=("guess_5_20",),
        points=1,
        minutes=3,
        objective="compare the bytes of a prompt with the arithmetic of it",
        needs=("cpu", "model"),
        question=Number(
            moving_share_percent,
            factor=6,
            unit="%",
            hint="23,040 values per token against some 270 million operations per token.",
        ),
        time_limit_s=60,
    ),
)
