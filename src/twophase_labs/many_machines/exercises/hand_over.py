"""7.1: prefill here, decode there: blocks that change hands, and when they arrive."""

from collections.abc import Sequence
from typing import Any

import torch

from twophase.cache.kv_cache import LayerKV
from twophase_labs.machine.checks import Draw, Rejected, compare, fresh, listed, number, plain, reject, unchanged
from twophase_labs.machine.exercise import exercise
from twophase_labs.many_machines.layer_blocks import (
    POISON,
    Heads,
    empty_layer,
    place,
    random_blocks,
    random_heads,
    stored,
    token_rows,
)

LAYERS = exercise(
    "7.1", "Blocks change hands", "slots_of take_layer put_layer", points=3, minutes=14, lines=4, difficulty=2
)
LAYERS.time_limit_s = 10
LAYERS.objective = "move a prompt's K and V between pools whose blocks have other ids"
LAYERS.hints = (
    "All three functions rest on one map, from positions to slots: position p is in the sequence's block number p "
    "// block_size, and `block_ids` says which block of the pool that is. take_layer reads from these slots, "
    "put_layer writes to those of *its* pool.",
    "With two index tensors of T elements each, `pool[blocks, :, offsets]` is [T, H_kv, D]: a row per token.",
    "In put_layer: the same expression on the left of an `=` writes `rows` into the other pool's slots.",
)

NUM_BLOCKS = 300
PARTS = ("K", "V", "the scales of K", "the scales of V")


def a_sequence(
    draw: Draw, num_tokens: int, block_size: int, quantised: bool, heads: Heads | None = None
) -> tuple[LayerKV, list[int], list[Any]]:
    """A layer in which a sequence lies in random blocks; its block ids, and what each token has."""
    heads = heads or random_heads(draw)
    layer = empty_layer(heads, NUM_BLOCKS, block_size, quantised)
    rows = token_rows(draw, heads, num_tokens, quantised)
    block_ids = random_blocks(draw, num_tokens, block_size, NUM_BLOCKS)
    place(layer, block_ids, rows)
    return layer, block_ids, rows


def taken(answer: Any, layer: LayerKV, block_ids: Sequence[int], num_tokens: int) -> list[Any]:
    theirs = list(block_ids)
    with unchanged(block_ids=theirs):
        message = plain(answer.take_layer(layer, theirs, num_tokens))
    if type(message) not in (list, tuple) or not all(isinstance(part, torch.Tensor) for part in message):
        reject(f"the message is {type(message).__name__}, expected a list of tensors")
    return list(message)


@LAYERS.check("maps positions to slots", num_tokens=(1, 6, 139, 90), block_size=(4, 4, 6, 80))
def maps_positions(answer: Any, draw: Draw, num_tokens: int, block_size: int) -> None:
    """Position p is in the sequence's block number p // block_size, which is block_ids of that, at offset p %
    block_size."""
    block_ids = random_blocks(draw, num_tokens, block_size, 40_000)  # ids beyond 16 bits
    theirs = list(block_ids)
    with unchanged(block_ids=theirs):
        found = answer.slots_of(theirs, num_tokens, block_size)
    if type(found) not in (list, tuple) or len(found) != 2:
        reject(f"slots_of returned {type(found).__name__}, expected two things: the blocks and the offsets")
    blocks = [block_ids[position // block_size] for position in range(num_tokens)]
    offsets = [position % block_size for position in range(num_tokens)]
    for got, expected, what in zip(found, (blocks, offsets), ("block", "offset"), strict=True):
        compare(listed(got), expected, what=f"the {what} in blocks of {block_size} {block_ids}", axes=("position",))


@LAYERS.check("takes the tokens in their order", num_tokens=(1, 4, 10, 23, 139, 90), block_size=(4, 4, 4, 2, 6, 80))
def takes_tokens_in_order(answer: Any, draw: Draw, num_tokens: int, block_size: int) -> None:
    """The block table is in the sequence's order, the pool is not: look the block up, then the offset in it. And
    the last block may hold fewer tokens than fit."""
    layer, block_ids, rows = a_sequence(draw, num_tokens, block_size, quantised=False)
    with unchanged(k=layer.k, v=layer.v):
        message = taken(answer, layer, block_ids, num_tokens)
    where = f"{num_tokens} tokens in blocks of {block_size}: {block_ids}"
    try:
        for got, expected, what in zip(message, rows, PARTS, strict=False):
            compare(got, expected, what=f"{what} of the message", axes=("token", "KV head", "dim"))
    except Rejected as error:
        reject(str(error), *error.details, where)
    if len(message) < 2:
        reject(f"the message has {len(message)} tensor, expected K and V")


@LAYERS.check("takes the scales too", num_tokens=(3, 9), block_size=(4, 4))
def takes_the_scales(answer: Any, draw: Draw, num_tokens: int, block_size: int) -> None:
    """An int8 layer is worth nothing without its scales, one per token and head; see `stored(layer)`."""
    layer, block_ids, rows = a_sequence(draw, num_tokens, block_size, quantised=True)
    message = taken(answer, layer, block_ids, num_tokens)
    if len(message) != len(rows):
        reject(f"an int8 layer gave {len(message)} tensors, expected 4: K, V and the scales of each")
    for got, expected, what in zip(message, rows, PARTS, strict=True):
        compare(got, expected, what=f"{what} of the message", axes=("token", "KV head", "dim")[: expected.ndim])


@LAYERS.check("takes a copy, not a view", num_tokens=(4,), block_size=(4,))
def takes_a_copy(answer: Any, draw: Draw, num_tokens: int, block_size: int) -> None:
    """The blocks are free as soon as they are taken, and the next prompt is written over them; a view would show
    that, in the middle of the transfer."""
    layer, block_ids, _ = a_sequence(draw, num_tokens, block_size, quantised=False)
    for part in taken(answer, layer, block_ids, num_tokens):
        fresh(part, k=layer.k, v=layer.v)


def put(
    answer: Any, draw: Draw, num_tokens: int, block_size: int, quantised: bool
) -> tuple[LayerKV, list[int], list[Any]]:
    heads = random_heads(draw)
    layer = empty_layer(heads, NUM_BLOCKS, block_size, quantised)
    rows = token_rows(draw, heads, num_tokens, quantised)
    block_ids = random_blocks(draw, num_tokens, block_size, NUM_BLOCKS)
    theirs, message = list(block_ids), [row.clone() for row in rows]
    with unchanged(block_ids=theirs, **{f"part_{at}": part for at, part in enumerate(message)}):
        answer.put_layer(layer, theirs, message)
    return layer, block_ids, rows


@LAYERS.check("writes into the pool", num_tokens=(3, 11), block_size=(4, 4), quantised=(False, True))
def writes_into_the_pool(answer: Any, draw: Draw, num_tokens: int, block_size: int, quantised: bool) -> None:
    """`pool[blocks, :, offsets] = rows`, in one index, writes into the pool. Indexing with a tensor gives a copy,
    so `pool[blocks][...] = rows` writes into that copy."""
    layer, _, _ = put(answer, draw, num_tokens, block_size, quantised)
    for blocks, what in zip(stored(layer), PARTS, strict=False):
        if bool((blocks == POISON).all()):
            reject(f"every slot still holds its old value, {POISON}: nothing was written into the pool of {what}")


@LAYERS.check(
    "puts them where the table says",
    num_tokens=(3, 11, 11, 90),
    block_size=(4, 4, 4, 80),
    quantised=(False, False, True, False),
)
def puts_them_where_the_table_says(answer: Any, draw: Draw, num_tokens: int, block_size: int, quantised: bool) -> None:
    """The blocks there have ids of their own; position p goes to block_ids[p // block_size], offset p % block_size."""
    layer, block_ids, rows = put(answer, draw, num_tokens, block_size, quantised)
    for blocks, values, what in zip(stored(layer), rows, PARTS, strict=False):
        for position, value in enumerate(values):
            block, offset = block_ids[position // block_size], position % block_size
            got = blocks[block, :, offset]
            slot = f"(block {block}, offset {offset}, of blocks {block_ids})"
            if bool((got == POISON).all()):
                old = f"the slot still holds its old value, {POISON}: nothing was written there"
                reject(f"{what} of token {position} is not in its slot {slot}", old)
            axes = ("KV head", "dim")[: value.ndim]
            compare(got, value, what=f"{what} of token {position} {slot}", axes=axes)


@LAYERS.check("leaves all other slots alone", num_tokens=(6, 13), block_size=(4, 8), quantised=(False, True))
def leaves_other_slots_alone(answer: Any, draw: Draw, num_tokens: int, block_size: int, quantised: bool) -> None:
    """The other blocks belong to other requests, and the rest of the last block must stay as it was."""
    layer, block_ids, rows = put(answer, draw, num_tokens, block_size, quantised)
    _, num_heads, _, dim = layer.k.shape
    expected = empty_layer(Heads(num_heads, dim), NUM_BLOCKS, block_size, quantised)
    place(expected, block_ids, rows)
    for got, wanted, what in zip(stored(layer), stored(expected), PARTS, strict=False):
        axes = ("block", "KV head", "offset", "dim")[: wanted.ndim]
        compare(got, wanted, what=f"the pool of {what}, {num_tokens} tokens in blocks {block_ids},", axes=axes)


@LAYERS.check(
    "goes between pools of different blocks",
    {"num_tokens": 10, "source": 4, "target": 4, "quantised": False},
    {"num_tokens": 10, "source": 8, "target": 2, "quantised": False},
    {"num_tokens": 13, "source": 2, "target": 8, "quantised": True},
    {"num_tokens": 100, "source": 12, "target": 5, "quantised": False},
)
def between_block_sizes(answer: Any, draw: Draw, num_tokens: int, source: int, target: int, quantised: bool) -> None:
    """What travels is tokens, so neither side needs to know the other's block size: each looks at its own
    `layer.k.shape`."""
    heads = random_heads(draw)
    layer, block_ids, rows = a_sequence(draw, num_tokens, source, quantised, heads)
    there = empty_layer(heads, NUM_BLOCKS, target, quantised)
    other_ids = random_blocks(draw, num_tokens, target, NUM_BLOCKS)
    answer.put_layer(there, list(other_ids), taken(answer, layer, block_ids, num_tokens))
    expected = empty_layer(heads, NUM_BLOCKS, target, quantised)
    place(expected, other_ids, rows)
    for got, wanted, what in zip(stored(there), stored(expected), PARTS, strict=False):
        axes = ("block", "KV head", "offset", "dim")[: wanted.ndim]
        compare(got, wanted, what=f"after a hand-over from blocks of {source} to blocks of {target}, {what}", axes=axes)


ARRIVALS = exercise(
    "7.2", "When everything is there", "arrival_times", points=3, minutes=10, lines=8, difficulty=2, time_limit_s=10
)
ARRIVALS.objective = "overlap a transfer with the arithmetic that produces it"
ARRIVALS.hints = (
    "A layer can leave when two things are true: it has been computed, and the layer before it has left.",
    "Two running times are enough: when the layer is computed, and when the link is free. The latency comes on top "
    "of each arrival, and keeps the link from nothing.",
    "computed_s = free_s = 0.0\n"
    "for layer_s, send_s in zip(compute_s, transfer_s):\n"
    "    computed_s = ...            # when this layer is computed\n"
    "    free_s = max(..., ...) + ...  # when its last byte has left\n"
    "    times.append(...)",
)


def arrivals(compute_s: Sequence[float], transfer_s: Sequence[float], latency_s: float) -> list[float]:
    """An oracle: the end of the longest chain of things that must happen one after the other. Layer i's last byte
    leaves after the computing of some layer j <= i, and the sending of j to i."""
    ends = []
    for i in range(len(compute_s)):
        chains = (sum(compute_s[: j + 1]) + sum(transfer_s[j : i + 1]) for j in range(i + 1))
        ends.append(max(chains) + latency_s)
    return ends


def arrived(answer: Any, compute_s: list[float], transfer_s: list[float], latency_s: float) -> list[float]:
    with unchanged(compute_s=compute_s, transfer_s=transfer_s):
        found = listed(answer.arrival_times(compute_s, transfer_s, latency_s))
    if type(found) not in (list, tuple):
        reject(f"arrival_times returned {type(found).__name__}, expected a list of seconds")
    times = [number(each) for each in found]
    if None in times:
        reject(f"arrival_times returned {found}, expected a list of seconds")
    return [float(each) for each in times if each is not None]


def arrives(answer: Any, compute_s: list[float], transfer_s: list[float], latency_s: float) -> None:
    got, expected = arrived(answer, compute_s, transfer_s, latency_s), arrivals(compute_s, transfer_s, latency_s)
    where = f"computing takes {compute_s}, sending {transfer_s}, and the latency is {latency_s:g}"
    try:
        compare(got, expected, what="the arrival", axes=("layer",))
    except Rejected as error:
        reject(str(error), *error.details, where)


def quarters(draw: Draw, low: int, high: int, count: int) -> list[float]:
    return [draw.integer(low, high) / 4 for _ in range(count)]


@ARRIVALS.check("computes, sends, and waits for the latency")
def one_layer(answer: Any, draw: Draw) -> None:
    """One layer takes its computing, its sending and the latency, one after the other."""
    for _ in range(2):
        arrives(answer, quarters(draw, 1, 20, 1), quarters(draw, 1, 20, 1), draw.integer(1, 9) / 8)


@ARRIVALS.check("sends a layer as soon as it is computed", num_layers=(2, 6, 70))
def leaves_when_computed(answer: Any, draw: Draw, num_layers: int) -> None:
    """Layer i is computed when layers 0 to i are; nothing waits for the layers after it."""
    # A link that is free whenever a layer is ready.
    arrives(answer, quarters(draw, 8, 20, num_layers), quarters(draw, 1, 8, num_layers), 0.0)


@ARRIVALS.check("has one layer on the link at a time", num_layers=(2, 6, 70))
def waits_for_the_link(answer: Any, draw: Draw, num_layers: int) -> None:
    """Where sending takes longer than computing, a layer waits until the one before it has left."""
    arrives(answer, quarters(draw, 1, 4, num_layers), quarters(draw, 8, 20, num_layers), 0.0)


@ARRIVALS.check("lets the next layer leave during the latency", num_layers=(2, 5))
def latencies_overlap(answer: Any, draw: Draw, num_layers: int) -> None:
    """While the last bytes of one layer travel, the next can leave: the latency delays every arrival, and occupies
    no link."""
    arrives(answer, quarters(draw, 1, 9, num_layers), quarters(draw, 1, 9, num_layers), draw.integer(8, 40) / 4)


@ARRIVALS.check("is right for any layers", num_layers=(0, 1, 5, 40))
def any_of_them(answer: Any, draw: Draw, num_layers: int) -> None:
    """No layers: an empty list. A layer may take no time to compute (its tokens were a hit) or to send."""
    # Some layers are there already (nothing to compute) or have nothing to send.
    for _ in range(3):
        lengths = quarters(draw, 0, 9, num_layers), quarters(draw, 0, 9, num_layers)
        arrives(answer, *lengths, draw.integer(0, 3) / 4)
