"""3.1 One decode step with a cache, layer by layer."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.decode.decoder import Decoder, LayerCache
from twophase_labs.kit.models import random_llama
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import cases, exercise

PIECES = cases(lengths=((1,), (4, 1), (7, 1, 1, 3)))
GROWING = cases(lengths=((1, 1), (4, 1), (7, 1, 1, 3, 1), (150, 1, 20)))

STEP = exercise("3.1", "One decode step, layer by layer", "decode_step", points=5, minutes=12, lines=9, difficulty=2)
STEP.time_limit_s = 60
STEP.objective = "run a real model for one token against a cache"
STEP.hints = (
    "Follow the picture of the step for one layer: project, append to that layer's cache, attend, finish. Then "
    "repeat for every layer.",
    "The first new token has position S, the number of tokens cached; every layer's cache holds S of them, along "
    "the middle axis of `[H_kv, S, D]`. Only the last row goes through `model.logits`.",
    "x = model.embed(new_ids)\nfor layer, (old_k, old_v) in enumerate(cache):\n"
    "    q, k, v = model.project(layer, x, positions)\n    k, v = ...  # old, then new, along dim=1\n"
    "    x = model.finish(layer, x, model.attend(q, k, v))\nreturn model.logits(...)[0], ...",
)

VOCAB = 100
KV_AXES = ("KV head", "position", "feature")


def tiny_llama(seed: int = 0) -> Any:
    """Two layers, 6 query heads over 2 KV heads of 8 numbers."""
    return random_llama(seed, 48, num_layers=2, num_heads=6, num_kv_heads=2)


class WatchedDecoder(Decoder):
    """Notes how many rows each of its parts was given."""

    def __init__(self, llama: Any) -> None:
        super().__init__(llama)
        self.num_projected: list[int] = []
        self.num_logit_rows: list[int] = []

    def project(self, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.num_projected.append(len(x))
        return super().project(layer, x, positions)

    def logits(self, x: Tensor) -> Tensor:
        self.num_logit_rows.append(1 if x.ndim == 1 else len(x))
        return super().logits(x)


def one_pass(ids: Tensor, seed: int = 0) -> tuple[Tensor, list[LayerCache]]:
    """What transformers computes over the whole text: the last row of logits, and its cache."""
    output = tiny_llama(seed)(ids[None], use_cache=True)
    layers = output.past_key_values.layers
    return output.logits[0, -1], [(layer.keys[0], layer.values[0]) for layer in layers]


def run_pieces(answer: Any, decoder: Decoder, pieces: tuple[Tensor, ...]) -> tuple[Any, Any]:
    cache: Any = decoder.empty_cache()
    logits = None
    for piece in pieces:
        logits, cache = call(answer, decoder, piece, cache)
    return logits, cache


def call(answer: Any, decoder: Decoder, ids: Tensor, cache: Any) -> tuple[Any, Any]:
    got = answer.decode_step(decoder, ids, cache)
    if not isinstance(got, tuple | list) or len(got) != 2:
        reject("the result is not a pair (logits, cache)", f"got {type(got).__name__}")
    return got[0], got[1]


def text(draw: Draw, lengths: tuple[int, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    ids = draw.integers(0, VOCAB, sum(lengths))
    return ids, ids.split(lengths)


@STEP.check("gives one row of logits", *PIECES)
def gives_one_row(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """`model.logits(rows)` gives a row for each row it gets; only the last row's prediction is news."""
    _, pieces = text(draw, lengths)
    logits, _ = run_pieces(answer, Decoder(tiny_llama()), pieces)
    if not isinstance(logits, Tensor) or logits.shape != (VOCAB,):
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        num_new = len(pieces[-1])
        reject(
            f"the logits have shape {shape}, expected [{VOCAB}] (the vocabulary)"
            + (": a vector, not a matrix of one row" if shape == [1, VOCAB] else ""),
            f"{num_new} new token{'s' * (num_new > 1)}; only the last predicts a token that is not known yet",
        )


@STEP.check("caches every token in every layer", *PIECES)
def caches_every_token(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """In each layer the cache grows by the new tokens, along the axis of positions. `[H_kv, S, D]` has it in the
    middle."""
    ids, pieces = text(draw, lengths)
    _, cache = run_pieces(answer, Decoder(tiny_llama()), pieces)
    if not isinstance(cache, list | tuple) or len(cache) != 2:
        reject("the cache does not have a pair (k, v) per layer", "this model has 2 layers")
    for layer, pair in enumerate(cache):
        for name, got in zip(("keys", "values"), pair, strict=True):
            if tuple(got.shape) != (2, len(ids), 8):
                reject(
                    f"the {name} of layer {layer} have shape {list(got.shape)}, expected [2, {len(ids)}, 8] "
                    "(KV heads, tokens, features)",
                    f"tokens came in pieces of {', '.join(map(str, lengths))}",
                )


@STEP.check("is right from an empty cache", length=(1, 6))
def starts_from_nothing(answer: Any, draw: Draw, length: int) -> None:
    """With nothing cached this is an ordinary forward pass. Positions start at 0, and the last row is the one that
    predicts."""
    ids, pieces = text(draw, (length,))
    logits, _ = run_pieces(answer, Decoder(tiny_llama()), pieces)
    compare(logits, one_pass(ids)[0], what="the row of logits", axes=("token of the vocabulary",), atol=1e-3)


@STEP.check("caches the right keys and values", *GROWING)
def caches_the_right_rows(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """Old before new; and a key is rotated by its position, which goes on counting where the cache ends."""
    ids, pieces = text(draw, lengths)
    _, cache = run_pieces(answer, Decoder(tiny_llama()), pieces)
    # Layer 0 first: its keys and values depend on token and position alone, not on attention.
    expected = one_pass(ids)[1][0]
    for name, got, right in zip(("keys", "values"), cache[0], expected, strict=True):
        compare(got, right, what=f"the cache of {name}, layer 0,", axes=KV_AXES, atol=1e-4)


@STEP.check("equals recomputing", *GROWING)
def equals_recomputing(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """The cache of layer 0 is right. So look at what the queries attend to: all keys and values, cached and new, in
    every layer."""
    ids, pieces = text(draw, lengths)
    logits, cache = run_pieces(answer, Decoder(tiny_llama()), pieces)
    expected, right = one_pass(ids)
    for name, got, other in zip(("keys", "values"), cache[1], right[1], strict=True):
        compare(got, other, what=f"the cache of {name}, layer 1,", axes=KV_AXES, atol=1e-3)
    compare(logits, expected, what="the row of logits", axes=("token of the vocabulary",), atol=1e-3)


@STEP.check("computes nothing twice", *GROWING)
def computes_nothing_twice(answer: Any, draw: Draw, lengths: tuple[int, ...]) -> None:
    """Only new tokens go through the layers, and only one row through the vocabulary."""
    _, pieces = text(draw, lengths)
    decoder = WatchedDecoder(tiny_llama())
    cache: Any = decoder.empty_cache()
    for piece in pieces:
        decoder.num_projected.clear()
        decoder.num_logit_rows.clear()
        _, cache = call(answer, decoder, piece, cache)
        if sum(decoder.num_projected) != 2 * len(piece):
            reject(
                f"{sum(decoder.num_projected)} rows were projected for {len(piece)} new tokens in 2 layers",
                f"expected {2 * len(piece)}",
            )
        if sum(decoder.num_logit_rows) != 1:
            reject(
                f"{sum(decoder.num_logit_rows)} rows of logits were computed, and 1 is used",
                f"{len(piece)} new tokens; on SmolLM2 a row costs a fifth of all the weights",
            )


@STEP.check("knows one text from another")
def knows_one_text_from_another(answer: Any, draw: Draw) -> None:
    """All that a step may know of the past is in the cache it is given."""
    # Two texts of different lengths in turn on one model, and on another model between them.
    decoder, other = Decoder(tiny_llama()), Decoder(tiny_llama(1))
    texts = [draw.integers(0, VOCAB, length) for length in (9, 6, 7)]
    owners = (decoder, decoder, other)
    caches = [call(answer, owner, ids[:-2], owner.empty_cache())[1] for ids, owner in zip(texts, owners, strict=True)]
    for number, (ids, owner, cache) in enumerate(zip(texts, owners, caches, strict=True)):
        logits, _ = call(answer, owner, ids[-2:], cache)
        expected, _ = one_pass(ids, seed=int(owner is other))
        what = f"the row of logits of text {number + 1} of 3, computed in turn,"
        compare(logits, expected, what=what, axes=("token of the vocabulary",), atol=1e-3)


@STEP.check("leaves the given cache alone")
def leaves_the_cache_alone(answer: Any, draw: Draw) -> None:
    """Return new tensors: another sequence may go on from the old cache."""
    decoder = Decoder(tiny_llama())
    _, (first, second) = text(draw, (5, 1))
    _, cache = call(answer, decoder, first, decoder.empty_cache())
    cache = [tuple(pair) for pair in cache]
    before = [tuple(part.clone() for part in pair) for pair in cache]
    call(answer, decoder, second, cache)
    for layer, (pair, old) in enumerate(zip(cache, before, strict=False)):
        for part, was in zip(pair, old, strict=True):
            if part.shape != was.shape or not torch.equal(part, was):
                reject(f"the cache that was given has changed, in layer {layer}")
    if len(cache) != len(before):
        reject(f"the cache that was given has {len(cache)} layers now, and had {len(before)}")


@STEP.check("goes on from one cache in two ways", lengths=((1, 1), (3, 2)))
def goes_on_in_two_ways(answer: Any, draw: Draw, lengths: tuple[int, int]) -> None:
    """Each call returns tensors of its own: room kept after the old tokens would be written by both."""
    # Two continuations of one text, both from its cache: they share the past and nothing else.
    decoder = Decoder(tiny_llama())
    ids, (first, one, other) = text(draw, (12, *lengths))
    _, cache = call(answer, decoder, first, decoder.empty_cache())
    _, longer = call(answer, decoder, one, cache)
    call(answer, decoder, other, cache)
    _, expected = one_pass(ids[: 12 + len(one)])
    for layer, (pair, right) in enumerate(zip(longer, expected, strict=True)):
        for name, got, should in zip(("keys", "values"), pair, right, strict=True):
            what = f"the first continuation's cache of {name}, layer {layer}, after a second continuation,"
            compare(got, should, what=what, axes=KV_AXES, atol=1e-3)
