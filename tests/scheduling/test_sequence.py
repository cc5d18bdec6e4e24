from tests.scheduling.harness import make_request
from twophase.scheduling.sequence import Sequence, SequenceStatus


def test_a_fork_shares_no_tokens_with_its_parent():
    parent = Sequence.of_request(0, make_request("a", 5, n=3), 64)
    child = parent.fork(7, 2)
    child.token_ids.append(1)
    assert (child.seq_id, child.index, child.num_completions, child.arrival_order) == (7, 2, 1, 0)
    assert len(child.token_ids) == 6
    assert len(parent.token_ids) == 5
    assert child.status is SequenceStatus.WAITING


def test_the_length_cap_is_the_smaller_of_max_tokens_and_context():
    assert Sequence.of_request(0, make_request("a", 5, 10), 64).max_num_tokens == 15
    assert Sequence.of_request(0, make_request("a", 5, 100), 64).max_num_tokens == 64
