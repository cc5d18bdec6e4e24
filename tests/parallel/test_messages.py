"""What rank 0 says arrives as it was said."""

import random

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase_features.parallel import _messages as messages
from twophase_features.parallel._messages import FIRST_INTS, Kind, Work


def random_work(rng: random.Random) -> Work:
    moves = [BlockCopy(rng.randrange(100), rng.randrange(100)) for _ in range(rng.choice([0, 1, 40]))]
    chunks = []
    for i in range(rng.choice([0, 1, 30])):
        num_tokens, num_blocks = rng.choice([1, 7, 200]), rng.randint(1, 9)
        tokens, blocks = rng.sample(range(1000), num_tokens), rng.sample(range(1000), num_blocks)
        chunks.append(ScheduledChunk(i, tokens, rng.randrange(1000), blocks, *(rng.randrange(3) for _ in range(3))))
    return Work(rng.choice(list(Kind)), chunks, moves)


def check_round_trips(module) -> None:
    rng = random.Random(7)
    for _ in range(60):
        work = random_work(rng)
        message = module.encode(work)
        assert message.dtype == torch.int64
        assert len(message) == module.num_ints(message[:FIRST_INTS])
        got = module.decode(message)
        assert (int(got.kind), list(got.chunks), list(got.moves)) == (int(work.kind), work.chunks, work.moves)


def test_round_trips():
    check_round_trips(messages)


def test_a_decode_step_of_a_few_sequences_is_one_message():
    chunks = [ScheduledChunk(i, [5], 300, list(range(20)), 1) for i in range(8)]
    assert len(messages.encode(Work(Kind.RUN, chunks))) == FIRST_INTS


MUTANTS = [
    ("blocks begin where tokens do", "numbers[shapes + 3 : tokens : CHUNK_INTS]", "numbers[shapes : shapes]"),
    ("moves are forgotten", "shapes = 2 * num_moves", "shapes = num_moves"),
    ("samples are start", "token_ids, start, block_ids, num_samples", "token_ids, start, block_ids, start"),
    ("nothing is scored", "num_samples, num_drafts, num_scored))", "num_samples, num_drafts))"),
    ("a long message is cut", "max(FIRST_INTS, int(first[0]))", "FIRST_INTS"),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_mutant_is_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.parallel._messages", old, new), check_round_trips)
