"""What rank 0 says arrives as it was said."""

import random
import threading

import pytest

from tests.mutation import KillTable, Mutant
from tests.parallel.thread_peers import ThreadPeers, lines_between
from twophase.core.plan import BlockCopy, ScheduledChunk
from twophase_features.parallel import tensor_parallel


def random_work(rng: random.Random):
    moves = [BlockCopy(rng.randrange(100), rng.randrange(100)) for _ in range(rng.choice([0, 1, 4000]))]
    chunks = []
    for i in range(rng.choice([0, 1, 30])):
        num_tokens, num_blocks = rng.choice([1, 7, 200]), rng.randint(1, 9)
        tokens, blocks = rng.sample(range(1000), num_tokens), rng.sample(range(1000), num_blocks)
        chunks.append(ScheduledChunk(i, tokens, rng.randrange(1000), blocks, *(rng.randrange(3) for _ in range(3))))
    return rng.choice([("run", (chunks,)), ("copy_blocks", (moves,)), ("close", ())])


def lines_of_two():
    lines = lines_between(2)
    return lines, *(ThreadPeers(rank, lines, threading.Barrier(2)) for rank in range(2))


def check_round_trips(module) -> None:
    rng = random.Random(7)
    lines, front, worker = lines_of_two()
    for _ in range(60):
        work = random_work(rng)
        module.tell(front, [1], work)
        assert module.next_work(worker) == work
        assert lines[0, 1].empty()


def test_round_trips():
    check_round_trips(tensor_parallel)


def test_a_decode_step_of_a_few_sequences_is_one_message():
    lines, front, _ = lines_of_two()
    chunks = [ScheduledChunk(i, [5], 300, list(range(20)), 1) for i in range(8)]
    tensor_parallel.tell(front, [1], ("run", (chunks,)))
    assert lines[0, 1].qsize() == 1


MUTANTS = [
    ("a long message is cut", "peers.send(message[FIRST_BYTES:]", "peers.send(message[FIRST_BYTES + 1 :]"),
    ("its length is not said", "[0] = len(message)", "[0] = FIRST_BYTES"),
    ("the rest is not heard", "if len(rest):", "if False:"),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_mutant_is_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.parallel.tensor_parallel", old, new), check_round_trips)
