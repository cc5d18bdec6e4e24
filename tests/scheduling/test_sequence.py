import itertools

import pytest

from tests.scheduling.harness import make_request
from twophase.scheduling.sequence import Sequence, SequenceStatus

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
