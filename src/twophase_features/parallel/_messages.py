"""What rank 0 tells the others to do, as one row of integers: nothing is pickled, and a decode step fits in 2 KB."""

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from twophase.core.plan import ScheduledChunk

FIRST_INTS = 256  # of every first message, so that the receiver knows how long it is; the rest follows if there is any
HEADER_INTS = 4
CHUNK_INTS = 6


class Kind(IntEnum):
    """What is to be done."""

    CLOSE = 0
    RUN = 1
    COPY = 2
    HOST_BLOCKS = 3
    SAVE = 4
    RESTORE = 5


class Work(NamedTuple):
    """One call of the runner.

    Attributes:
        chunks: Of the step; read by RUN.
        moves: Pairs of blocks, from and to; read by COPY, SAVE and RESTORE. HOST_BLOCKS has one, whose first number is
            how many there are to be.
    """

    kind: Kind
    chunks: Sequence[ScheduledChunk] = ()
    moves: Sequence[tuple[int, int]] = ()


def encode(work: Work) -> Int64[Tensor, "L"]:
    """[length, kind, number of chunks, number of moves], the moves, each chunk's [start, samples, drafts, number of
    tokens, number of blocks, scored tokens], all tokens, all blocks; padded to `FIRST_INTS`.
    """
    chunks = work.chunks
    numbers = list(chain.from_iterable(work.moves))
    for chunk in chunks:
        sizes = len(chunk.token_ids), len(chunk.block_ids)
        numbers += (chunk.start, chunk.num_samples, chunk.num_drafts, *sizes, chunk.num_scored)
    for chunk in chunks:
        numbers += chunk.token_ids
    for chunk in chunks:
        numbers += chunk.block_ids
    length = HEADER_INTS + len(numbers)
    padding = [0] * (FIRST_INTS - length)
    return torch.tensor([length, work.kind, len(chunks), len(work.moves), *numbers, *padding], dtype=torch.int64)


def num_ints(first: Int64[Tensor, "L"]) -> int:
    """How long the whole message is of which this is the beginning."""
    return max(FIRST_INTS, int(first[0]))


def decode(message: Int64[Tensor, "L"]) -> Work:
    """What was encoded; each chunk's `seq_id` is its place, since only rank 0 knows sequences."""
    length, kind, num_chunks, num_moves, *numbers = message.tolist()
    pairs = iter(numbers[: 2 * num_moves])
    shapes = 2 * num_moves
    tokens = shapes + CHUNK_INTS * num_chunks
    blocks = tokens + sum(numbers[shapes + 3 : tokens : CHUNK_INTS])
    chunks = []
    for i in range(num_chunks):
        shape = numbers[shapes + CHUNK_INTS * i :][:CHUNK_INTS]
        start, num_samples, num_drafts, num_tokens, num_blocks, num_scored = shape
        token_ids, block_ids = numbers[tokens : tokens + num_tokens], numbers[blocks : blocks + num_blocks]
        chunks.append(ScheduledChunk(i, token_ids, start, block_ids, num_samples, num_drafts, num_scored))
        tokens, blocks = tokens + num_tokens, blocks + num_blocks
    assert HEADER_INTS + blocks == length, (blocks, length)
    return Work(Kind(kind), chunks, list(zip(pairs, pairs, strict=True)))
