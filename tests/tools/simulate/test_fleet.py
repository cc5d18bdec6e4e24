"""Routers by hand, and fleets that are not."""

import pytest

from tests.tools.simulate.runs import make_scheduler, request
from twophase.core.errors import ConfigError
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.workloads import RandomWorkload, TimedRequest
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.fleet import run_fleet
from twophase_tools.simulate.routers import ROUTERS, LeastOutstanding, RoundRobin, Router, router_named
from twophase_tools.simulate.simulator import Replica, simulate
from twophase_tools.simulate.traffic import requests_of

SECOND = LinearCostModel(1.0)


def served_by(router, requests, count=2):
    fleet = run_fleet(requests, [Replica(make_scheduler(), SECOND) for _ in range(count)], router)
    return [sorted(record.request_id for record in replica.records) for replica in fleet.replicas]


def test_routers_by_hand():
    """a runs for 5 s on the first engine; b on the second is done at 1.1 s, so d finds nobody there."""
    requests = [request("a", 0, 2, 5), request("b", 0.1, 2, 1), request("c", 0.2, 2, 1), request("d", 1.3, 2, 1)]
    assert served_by(RoundRobin(), requests) == [["a", "c"], ["b", "d"]]
    assert served_by(LeastOutstanding(), requests) == [["a", "c"], ["b", "d"]]
    requests = [*requests, request("e", 1.4, 2, 1), request("f", 2.5, 2, 3), request("g", 2.6, 2, 1)]
    assert served_by(RoundRobin(), requests) == [["a", "c", "e", "g"], ["b", "d", "f"]]
    # At 1.4 a and c are on the first, d on the second. At 2.5 a is left there and e here: the first's turn.
    assert served_by(LeastOutstanding(), requests) == [["a", "c", "f"], ["b", "d", "e", "g"]]


class Lost(Router):
    looks_at_replicas = False

    def choose(self, replicas, request):
        return len(replicas)


def test_bad_fleets():
    with pytest.raises(ConfigError, match="chose replica 2 of 2"):
        served_by(Lost(), [request("a", 0, 2, 2)])
    with pytest.raises(ConfigError, match="at least 1 replica"):
        run_fleet([], [], RoundRobin())
    with pytest.raises(ConfigError, match="round-robin, least-outstanding"):
        router_named("random")
    assert {name: type(router_named(name)) for name in ROUTERS} == ROUTERS


def test_a_fleet_equals_its_replicas_alone():
    """Round robin over 3 engines is three engines with every third request."""
    workload = RandomWorkload("w", 60, Poisson(1.0), UniformLengths(1, 20), UniformLengths(1, 20))
    requests = list(requests_of(workload))
    fleet = run_fleet(requests, [Replica(make_scheduler(), SECOND) for _ in range(3)], RoundRobin())
    for i, replica in enumerate(fleet.replicas):
        alone = simulate(requests[i::3], make_scheduler(), SECOND)
        assert sorted(replica.records, key=lambda record: record.arrival_s) == list(alone.records)
        assert replica.steps == alone.steps


def test_prompts_share_what_they_should():
    timed = [
        TimedRequest("a", 0, 6, 2, prefix="x", num_prefix_tokens=4),
        TimedRequest("b", 1, 5, 2, prefix="x", num_prefix_tokens=4),
        TimedRequest("c", 2, 5, 2, prefix="y", num_prefix_tokens=4),
        TimedRequest("d", 3, 3, 2),
        TimedRequest("e", 4, 2, 2, prompt_token_ids=(8, 9)),
    ]
    a, b, c, d, e = requests_of(timed)
    assert [len(each.prompt_token_ids) for each in (a, b, c, d, e)] == [6, 5, 5, 3, 2]
    assert a.prompt_token_ids[:4] == b.prompt_token_ids[:4] != c.prompt_token_ids[:4]
    own = [each.prompt_token_ids[-1] for each in (a, b, c, d)]
    assert len({*own, a.prompt_token_ids[0], c.prompt_token_ids[0]}) == 6
    assert e.prompt_token_ids == (8, 9)
    assert (d.arrival_s, d.sampling_params.max_tokens, d.sampling_params.ignore_eos) == (3, 2, True)
