"""Whatever values a request brings, adding it works or is refused, and no later step fails for them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.scheduling.harness import Harness, make_request
from tests.scheduling.test_policies import Learners, decode_twice
from twophase.core.errors import InvalidRequestError
from twophase.scheduling.policy import PriorityPolicy, decodes_first
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.request_level import DynamicPolicy

NAN = float("nan")


def unchecked(request_id: str, **values):
    """A request as it would be if nobody had looked at these values."""
    request = make_request(request_id, 3, 2)
    for name, value in values.items():
        object.__setattr__(request, name, value)
    return request


def check_refused_and_forgotten(policy, values) -> None:
    """It is refused alone and beside others, its id is free again, and everyone else is served."""
    harness = Harness(policy=policy)
    for _ in range(2):
        for refuses in (harness.scheduler.check, harness.scheduler.add):
            with pytest.raises(InvalidRequestError):
                refuses(unchecked("bad", **values))
        harness.add(make_request("good" if not harness.requests else "better", 3, 2))
    assert len(harness.scheduler.sequences) == harness.scheduler.num_waiting == 2
    assert harness.scheduler.abort("bad") == []
    harness.add(make_request("bad", 3, 2))
    harness.run().check_outputs()


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        (PriorityPolicy(), {"priority": NAN}),
        (PriorityPolicy(), {"priority": "x"}),
        (PriorityPolicy(), {"priority": None}),
        (PriorityPolicy(), {"priority": 1j}),
        (PriorityPolicy(patience_s=2.0), {"arrival_s": NAN}),
        (PriorityPolicy(patience_s=2.0), {"priority": 10**400}),
        (PriorityPolicy(patience_s=0), {"priority": math.inf}),
        (DeadlinePolicy(), {"ttft_slo_s": NAN}),
        (DeadlinePolicy(), {"ttft_slo_s": "soon"}),
    ],
    ids=str,
)
def test_what_cannot_be_sorted_or_planned_by_is_refused(policy, values):
    check_refused_and_forgotten(policy, values)


def test_the_refusal_says_why():
    with pytest.raises(InvalidRequestError, match=r"ranks request 'a' by \(nan, 0, 0\).*priority"):
        Harness().scheduler.add(unchecked("a", priority=NAN))


@pytest.mark.parametrize("rank", ["a", ("a",), [1], ((1, NAN),), (None,), (SimpleNamespace(),)], ids=str)
def test_a_policys_own_ranks_are_looked_at_too(rank):
    harness = Harness(policy=Learners(decode_twice, lambda sequence: rank))
    with pytest.raises(InvalidRequestError, match="a rank must be a tuple of numbers"):
        harness.scheduler.add(make_request("a", 3))
    assert not harness.scheduler.has_unfinished


def test_equal_ranks_go_by_arrival():
    """In the queue, and when a sequence must go."""
    harness = Harness(
        policy=Learners(decodes_first, lambda sequence: (0,)), num_blocks=5, prefix_caching=False, reserve_growth=False
    )
    harness.add(*(make_request(name, 4, 8) for name in "abc"))
    harness.step()
    assert [name for _, name, _ in harness.log] == ["a", "b"]
    harness.run().check_outputs()
    assert {name for _, name in harness.preempted} == {"b", "c"}


@pytest.mark.parametrize("priority", [0, -3, 2.5, True, np.int64(3), np.float32(0.5), math.inf, 10**400])
def test_any_number_is_a_priority(priority):
    harness = Harness()
    harness.add(unchecked("a", priority=priority), make_request("b", 3, 2), unchecked("c", priority=priority))
    harness.run().check_outputs()


@pytest.mark.parametrize("arrival_s", [1e308, -1e308, 1e9])
def test_a_batch_does_not_wait_longer_than_its_time_for_an_arrival_far_away(arrival_s):
    harness = Harness(policy=DynamicPolicy(batch_size=4, timeout_s=5), step_s=1.0)
    harness.add(unchecked("a", arrival_s=arrival_s))
    for _ in range(3):
        harness.step()
    harness.add(*(make_request(name, 3, 2) for name in "bcd"))
    harness.run().check_outputs()
