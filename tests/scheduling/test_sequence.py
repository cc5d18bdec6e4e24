import itertools
import random

import pytest

from tests.scheduling.harness import make_request
from twophase.scheduling.sequence import Sequence, SequenceStatus
from twophase.scheduling.waiting_queue import WaitingQueue

LEGAL = {
    ("waiting", "running"),
    ("running", "preempted"),
    ("preempted", "running"),
    ("waiting", "finished"),
    ("running", "finished"),
    ("preempted", "finished"),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SequenceStatus, repeat=2)))
def test_only_legal_steps_between_states(old, new):
    sequence = Sequence.of_request(3, make_request("a", 5), 64)
    sequence.status = old
    if (old.value, new.value) in LEGAL:
        sequence.become(new)
        assert sequence.status is new
    else:
        with pytest.raises(RuntimeError, match=f"sequence 3 cannot go from {old.value} to {new.value}"):
            sequence.become(new)
        assert sequence.status is old


def test_a_fork_shares_no_tokens_with_its_parent():
    parent = Sequence.of_request(0, make_request("a", 5, n=3), 64)
    child = parent.fork(7, 2)
    child.token_ids.append(1)
    assert (child.seq_id, child.index, child.num_completions, child.arrival_order) == (7, 2, 1, 0)
    assert child.output_token_ids == [1]
    assert parent.output_token_ids == []
    assert child.status is SequenceStatus.WAITING


def test_the_length_cap_is_the_smaller_of_max_tokens_and_context():
    assert Sequence.of_request(0, make_request("a", 5, 10), 64).max_num_tokens == 15
    assert Sequence.of_request(0, make_request("a", 5, 100), 64).max_num_tokens == 64


def _queued(queue, seq_id, rank):
    sequence = Sequence.of_request(seq_id, make_request(str(seq_id), 5), 64)
    sequence.rank = (rank, seq_id)
    queue.push(sequence)
    return sequence


def test_queue_against_a_sorted_list():
    rng = random.Random(0)
    queue, waiting = WaitingQueue(), []
    for seq_id in range(3000):
        waiting.append(_queued(queue, seq_id, rng.randrange(5)))
        while waiting and rng.random() < 0.49:
            gone = rng.choice(waiting) if rng.random() < 0.7 else min(waiting, key=lambda s: s.rank)
            queue.remove(gone)
            waiting.remove(gone)
        assert len(queue) == len(waiting)
        assert queue.peek() is min(waiting, key=lambda s: s.rank, default=None)
        assert len(queue._heap) <= 2 * len(waiting), "stale entries pile up"


def test_queue_remove_of_a_stranger_changes_nothing():
    queue = WaitingQueue()
    first = _queued(queue, 0, 0)
    with pytest.raises(KeyError):
        queue.remove(Sequence.of_request(9, make_request("x", 5), 64))
    assert queue.peek() is first
    assert len(queue) == 1
