"""Timelines worked out by hand, a queue with a known formula, and everything that must not hang."""

import pytest

from tests.tools.simulate.runs import make_scheduler, request
from twophase.core.errors import InvalidRequestError, PolicyError
from twophase.scheduling.policy import Policy
from twophase_features.policies.request_level import DynamicPolicy
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.workloads import RandomWorkload
from twophase_tools.simulate.cost_model import CostModel, LinearCostModel
from twophase_tools.simulate.simulator import SimulationStuckError, simulate
from twophase_tools.simulate.traffic import requests_of

SECOND = LinearCostModel(1.0)


def test_timeline_by_hand():
    """A second per step and half a second per token: B comes during A's prefill and joins A's first decode."""
    costs = LinearCostModel(1.0, 0.5)
    requests = [request("a", 0, 3, 3), request("b", 0.5, 2, 2), request("c", 10, 1, 1)]
    result = simulate(requests, make_scheduler(), costs)
    steps = [(step.start_s, step.run_s, step.chunks) for step in result.steps]
    assert steps == [
        (0.0, 2.5, (("a", 0, 0, 3),)),
        (2.5, 2.5, (("a", 0, 3, 1), ("b", 0, 0, 2))),
        (5.0, 2.0, (("a", 0, 4, 1), ("b", 0, 2, 1))),
        (10.0, 1.5, (("c", 0, 0, 1),)),
    ]
    a, b, c = result.records
    assert a.token_times_s == (2.5, 5.0, 7.0)
    assert b.token_times_s == (5.0, 7.0)
    assert (b.first_scheduled_s, b.ttft_s, b.tpot_s, b.finished_s) == (2.5, 4.5, 2.0, 7.0)
    assert (c.token_times_s, c.finish_reason) == ((11.5,), "length")
    assert result.steps[2].finished == (("a", 0), ("b", 0))


class WithOverheads(CostModel):
    def overhead_s(self, num_chunks):
        return 0.25, 0.125 + 0.125 * num_chunks

    def run_s(self, load):
        return 1.0


def test_overheads_move_the_clock():
    result = simulate([request("a", 0, 3, 2)], make_scheduler(), WithOverheads())
    assert [(s.start_s, s.schedule_s, s.run_s, s.update_s) for s in result.steps] == [
        (0.0, 0.25, 1.0, 0.25),
        (1.5, 0.25, 1.0, 0.25),
    ]
    assert result.records[0].first_scheduled_s == 0.25
    assert result.records[0].token_times_s == (1.5, 3.0)


def test_an_arrival_waits_for_the_step_under_way():
    """At 3.0 exactly, when a step begins: it is in that step. A moment later: in the next one."""
    for arrival_s, first_token_s in ((3.0, 4.0), (3.001, 5.0), (3.999, 5.0), (4.0, 5.0)):
        requests = [request("long", 0, 2, 20), request("late", arrival_s, 2, 2)]
        result = simulate(requests, make_scheduler(), SECOND)
        assert result.records[1].token_times_s == (first_token_s, first_token_s + 1)
        assert result.records[0].token_times_s == tuple(float(t) for t in range(1, 21))


def test_a_policy_may_sleep():
    """A batch of two starts when it is full, or 2.5 s after its oldest request came."""
    requests = [request("a", 1, 2, 1), request("b", 2, 2, 1), request("c", 5, 2, 1)]
    result = simulate(requests, make_scheduler(policy=DynamicPolicy(2, 2.5)), SECOND)
    assert [step.start_s for step in result.steps] == [2.0, 7.5]


def test_preemption_is_recorded():
    scheduler = make_scheduler(num_blocks=6, max_num_seqs=2, budget=16, reserve_growth=False)
    result = simulate([request("a", 0, 8, 12), request("b", 0, 8, 12)], scheduler, SECOND)
    assert [record.num_preemptions for record in result.records] == [0, 1]
    assert sum(len(step.preempted) for step in result.steps) == 1
    assert all(len(record.token_times_s) == 12 for record in result.records)


def test_one_place_is_an_m_d_1_queue():
    """Poisson arrivals, one place, every request one step of a second.

    Each wait follows from the one before (Lindley: w' = max(0, w + service - gap)), and their mean is near
    rho / (2 (1 - rho)) seconds (Pollaczek-Khinchine for constant service).
    """
    load = 0.5
    workload = RandomWorkload("m/d/1", 2500, Poisson(load), UniformLengths(1, 1), UniformLengths(1, 1), seed=1)
    records = simulate(requests_of(workload), make_scheduler(max_num_seqs=1), SECOND).records
    wait_s, arrival_s = 0.0, 0.0
    for record in records:
        wait_s = max(0.0, wait_s + 1 - (record.arrival_s - arrival_s)) if arrival_s else 0.0
        arrival_s = record.arrival_s
        assert record.queue_s == pytest.approx(wait_s, abs=1e-6)
    mean_s = sum(record.queue_s for record in records) / len(records)
    assert mean_s == pytest.approx(load / (2 * (1 - load)), rel=0.1)


@pytest.mark.parametrize("arrivals", [(-1,), (2, 1)], ids=["negative", "unsorted"])
def test_impossible_arrivals(arrivals):
    requests = [request(f"r{i}", arrival_s, 2, 2) for i, arrival_s in enumerate(arrivals)]
    with pytest.raises(InvalidRequestError, match=f"'r{len(arrivals) - 1}' arrives at"):
        simulate(requests, make_scheduler(), SECOND)


def test_a_request_that_never_fits():
    with pytest.raises(InvalidRequestError, match="KV blocks"):
        simulate([request("a", 0, 8, 30)], make_scheduler(num_blocks=4), SECOND)


class PlansNothing(Policy):
    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)

    def plan(self, step):
        pass


class PutsOff(PlansNothing):
    def plan(self, step):
        step.wait_until(step.now_s + 1)


def test_nothing_hangs():
    with pytest.raises(PolicyError, match="planned nothing"):
        simulate([request("a", 0, 2, 2)], make_scheduler(policy=PlansNothing()), SECOND)
    with pytest.raises(
        SimulationStuckError, match="1 requests are unfinished: 1 sequences wait, 0 run, 0 of 64 blocks"
    ):
        simulate([request("a", 0, 2, 2)], make_scheduler(policy=PutsOff()), SECOND)
