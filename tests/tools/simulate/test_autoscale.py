"""Engines that come and go: by hand, and under a load that rises and falls."""

import math

import pytest

from tests.tools.simulate.runs import make_scheduler, request
from twophase.core.errors import ConfigError
from twophase_tools.simulate.autoscale import Scaler, ScalingPolicy
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.fleet import Fleet
from twophase_tools.simulate.recorder import Recorder
from twophase_tools.simulate.routers import LeastOutstanding
from twophase_tools.simulate.simulator import Replica

SECOND = LinearCostModel(1.0)


class Script(ScalingPolicy):
    """Wants these numbers, one at each look, then the last one."""

    def __init__(self, *wanted):
        self.wanted, self.seen = list(wanted), []

    def num_wanted(self, state):
        self.seen.append(state)
        return self.wanted.pop(0) if len(self.wanted) > 1 else self.wanted[0]


def fleet_of(policy, count=1, slots=4, **options):
    def make():
        return Replica(make_scheduler(max_num_seqs=slots), SECOND, Recorder())

    options = {"most": 9, "startup_s": 5, "period_s": 10, "down_after_s": 0} | options
    return Fleet([make() for _ in range(count)], LeastOutstanding(), Scaler(policy, make, **options))


def num_served(fleet):
    return [len(life.replica.recorder.records) for life in fleet.lives]


def test_an_engine_takes_requests_when_it_has_started():
    """Ordered at 10 s, ready at 15 s: what comes at 14 s joins the first engine, what comes at 16 s the second."""
    fleet = fleet_of(Script(2))
    for name, arrival_s in (("a", 9), ("b", 14), ("c", 16)):
        fleet.serve(request(name, arrival_s, 4, 20))
    fleet.finish()
    assert num_served(fleet) == [2, 1]
    assert [(life.start_s, life.ready_s, life.end_s) for life in fleet.lives] == [(0, 0, None), (10, 15, None)]
    assert fleet.engine_s(40) == 40 + 30


def test_an_engine_drains_before_it_leaves():
    """Two engines with a request each until 25 s; at 10 s one is to go: it serves on, gets nothing, leaves at 30 s."""
    fleet = fleet_of(Script(1), count=2)
    for name, arrival_s in (("a", 0), ("b", 5), ("c", 12), ("d", 14)):
        fleet.serve(request(name, arrival_s, 4, 21))
    fleet.finish()
    assert num_served(fleet) == [3, 1]  # b has fewer tokens at 10 s
    assert [life.end_s for life in fleet.lives] == [None, 30]
    assert fleet.lives[1].replica.recorder.records[-1].finished_s == 26


def test_one_that_drains_is_taken_back_before_one_is_started():
    fleet = fleet_of(Script(1, 2), count=2)
    for name, arrival_s in (("a", 0), ("b", 1), ("c", 21)):
        fleet.serve(request(name, arrival_s, 4, 40))
    fleet.finish()
    assert len(fleet.lives) == 2
    assert [life.end_s for life in fleet.lives] == [None, None]


def test_one_that_starts_is_given_up_first():
    fleet = fleet_of(Script(3, 1), startup_s=100)
    fleet.serve(request("a", 0, 4, 30))
    fleet.finish()
    assert [(life.start_s, life.end_s) for life in fleet.lives] == [(0, None), (10, 20), (10, 20)]
    assert fleet.engine_s(30) == 30 + 10 + 10


def test_fewer_only_when_it_was_wanted_for_long():
    """Never fewer than the largest number wanted in the last 25 s; more at once."""
    fleet = fleet_of(Script(4, 3, 2, 1, 1, 1, 5, 1), count=4, startup_s=0, down_after_s=25)
    fleet.serve(request("a", 0, 4, 60))
    fleet.serve(request("b", 60, 4, 20))
    fleet.finish()
    assert [wanted for _, wanted in fleet.states] == [4, 4, 4, 3, 2, 1, 5, 5]


def test_what_a_policy_sees():
    """At 10 s: two places taken since 0 s, a third request waits since 4 s; 3 prompts of 4 and 10 outputs of two."""
    policy = Script(1)
    fleet = fleet_of(policy, slots=2)
    for arrival_s in (0, 0, 4):
        fleet.serve(request(f"{arrival_s}{len(policy.seen)}{id(object())}", arrival_s, 4, 30))
    fleet.run_until(10)
    (seen,) = policy.seen
    assert (seen.num_outstanding, seen.num_tokens, seen.capacity_tokens) == (3, 12 + 20, 256)
    assert (seen.queue_age_s, seen.busy_share) == (6.0, 1.0)


def test_busy_is_that_of_the_latest_period():
    """A request until 5 s, and another from 30 s on: busy for half of the first period, not at all in the next two."""
    policy = Script(1)
    fleet = fleet_of(policy)
    fleet.serve(request("a", 0, 4, 5))
    fleet.serve(request("b", 30, 4, 12))
    fleet.finish()
    assert [seen.busy_share for seen in policy.seen] == [0.5, 0, 0, 1, 0.2]


def test_limits_are_kept():
    fleet = fleet_of(Script(9, 0), count=2, least=2, most=3)
    fleet.serve(request("a", 0, 4, 25))
    fleet.finish()
    assert [wanted for _, wanted in fleet.states] == [3, 2, 2]


def nothing() -> Replica:
    raise AssertionError("no engine is wanted")


class PerEngine(ScalingPolicy):
    """Three unfinished requests for each engine."""

    def num_wanted(self, state):
        return math.ceil(state.num_outstanding / 3)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Scaler(PerEngine(), nothing, most=0), "1 <= least <= most"),
        (lambda: Scaler(PerEngine(), nothing, least=3, most=2), "1 <= least <= most"),
        (lambda: Scaler(PerEngine(), nothing, most=2, startup_s=-1), "startup_s must be"),
        (lambda: Scaler(PerEngine(), nothing, most=2, down_after_s=float("nan")), "down_after_s must be"),
        (lambda: Scaler(PerEngine(), nothing, most=2, period_s=0), "period_s must be"),
        (lambda: fleet_of(PerEngine(), count=3, most=2), "cannot begin with 3"),
    ],
)
def test_bad_rules(make, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_a_policy_must_want_a_whole_number():
    fleet = fleet_of(Script(1.5))
    fleet.serve(request("a", 0, 4, 30))
    with pytest.raises(ConfigError, match=r"Script must want a whole number of engines, got 1\.5"):
        fleet.finish()
