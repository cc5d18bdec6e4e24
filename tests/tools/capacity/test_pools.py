"""Pools of prefill and decode engines: planned by hand, proposed, refused, and played out as they were planned."""

import json

import pytest

from tests.tools.capacity.plans import plan
from twophase.core.errors import ConfigError
from twophase_tools.capacity.engine import engine_config
from twophase_tools.capacity.memory import memory_table
from twophase_tools.capacity.report import to_dict, to_text, warnings_of
from twophase_tools.load.arrivals import Poisson
from twophase_tools.load.lengths import UniformLengths
from twophase_tools.load.workloads import RandomWorkload
from twophase_tools.simulate.fleet import Fleet
from twophase_tools.simulate.fleet_report import FleetReport
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.pools import Link, run_pools
from twophase_tools.simulate.routers import LeastOutstanding
from twophase_tools.simulate.simulator import Replica
from twophase_tools.simulate.traffic import requests_of

POOLS = "{prefill: {hardware: h100}, decode: {hardware: h200}, link_bytes_per_s: 50e9, link_latency_s: 1e-3}"
SERVICE = {
    "hardware": "h100",
    "max_model_len": "8192",
    "max_num_seqs": "128",
    "workload": "{rate: 40, prompt_tokens: 4000, output_tokens: 150}",
    "slo": "{ttft_s: 0.5, tpot_s: 0.012}",
}


def service(**changes):
    return plan(**(SERVICE | {"pools": POOLS} | changes))


def sized(prefill, decode):
    return (
        f"{{prefill: {{hardware: h100, engines: {prefill}}}, decode: {{hardware: h200, engines: {decode}}}, "
        f"link_bytes_per_s: 50e9}}"
    )


class TestByHand:
    def test_the_transfer(self):
        """4,000 tokens of 2 * 32 layers * 8 heads * 128 values of 2 bytes at 50 GB/s, and a millisecond."""
        assert service().pools.transfer_s == pytest.approx(1e-3 + 4000 * 131072 / 50e9)

    def test_a_pool_s_engines_are_those_of_a_plan_of_their_own(self):
        """Prefill: a mixed engine whose requests are one token long. Decode: K/V of the H200's memory."""
        pools = service().pools
        alone = plan(**(SERVICE | {"workload": "{rate: 40, prompt_tokens: 4000, output_tokens: 1}"}))
        assert pools.prefills_per_s == pytest.approx(alone.saturated.requests_per_s)
        assert pools.decode.memory == plan(**(SERVICE | {"hardware": "h200"})).memory
        assert pools.decode.max_requests == 128

    def test_a_slow_link_limits_the_prefill_pool(self):
        """At 1 GB/s a prompt's K and V take half a second of the sender's link."""
        slow = service(pools=POOLS.replace("50e9", "1e9"), slo="{ttft_s: 2}").pools
        assert slow.prefills_per_s == pytest.approx(1e9 / (4000 * 131072))
        assert slow.num_prefill == 27  # ceil(40 / (0.8 * 1.907))
        assert slow.num_prefill > service().pools.num_prefill

    def test_decodes_by_little_s_law(self):
        """At its limit, 128 sequences: a step of 128 decodes, of which a request takes 149."""
        pools = service().pools
        step_s = pools.decode.cost.step_s(128)
        assert pools.decodes_per_s == pytest.approx(128 / (149 * step_s))
        # At the rate of one engine of two: as many at once as make 20 a second.
        tpot_s = pools.tpot_with(2)
        num = next(n / 100 for n in range(1, 12800) if n / 100 / (149 * pools.decode.cost.step_s(n / 100)) >= 20)
        assert tpot_s == pytest.approx(pools.decode.cost.step_s(num + 1), rel=1e-3)


class TestProposals:
    def test_the_fewest_that_are_not_crowded_and_keep_the_slo(self):
        pools = service().pools
        slo = pools.config.slo

        def is_enough(prefill, decode):
            pools = service(pools=sized(prefill, decode)).pools
            use = [side.utilisation for side in pools.sides.values()]
            return max(use) <= 0.8 and slo.is_met(pools.ttft_s, pools.tpot_s)

        assert is_enough(pools.num_prefill, pools.num_decode)
        assert not is_enough(pools.num_prefill - 1, pools.num_decode)
        assert not is_enough(pools.num_prefill, pools.num_decode - 1)
        assert pools.num_gpus == pools.num_prefill + pools.num_decode

    def test_a_promise_that_no_number_keeps(self):
        impossible = service(slo="{tpot_s: 0.001}")
        assert (impossible.pools.num_decode, impossible.pools.num_gpus) == (None, None)
        assert warnings_of(impossible) == ["out of reach: no number of engines in the decode pool is enough"]
        assert "no number of engines" in to_text(impossible)


def test_text_and_json():
    shown, data = to_text(service()), to_dict(service())["pools"]
    assert "6 engines of 1 x NVIDIA H100 SXM, proposed" in shown
    assert "2 engines of 1 x NVIDIA H200 SXM, proposed" in shown
    assert "no warnings" in shown
    assert (data["num_prefill"], data["num_decode"], data["num_gpus"]) == (6, 2, 8)
    json.dumps(data, allow_nan=False)
    assert to_dict(plan())["pools"] is None


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"pools": sized(3, 2)}, "overloaded: 3 engines of the prefill pool take"),
        ({"pools": sized(6, 1)}, "overloaded: 1 engines of the decode pool take"),
        ({"pools": sized(9, 2), "slo": "{tpot_s: 0.007}"}, "the mean request does not keep TPOT <= 0.007 s"),
        ({"pools": sized(9, 2), "model": "llama-3-70b"}, "does not fit: an engine of the prefill pool"),
    ],
)
def test_warnings(changes, warning):
    assert warnings_of(service(**changes))[0].startswith(warning)


def test_pools_are_not_one_engine():
    with pytest.raises(ConfigError, match="pools have two kinds"):
        engine_config(service())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pools": sized(0, 1)}, "pools.prefill.engines must be a whole number >= 1"),
        ({"pools": "{prefill: {engines: 1}, link_bytes_per_s: 1e9}"}, "pools.decode is missing"),
        ({"pools": "{prefill: {engines: 1}, decode: {engines: 1}}"}, "pools.link_bytes_per_s is missing"),
        ({"pools": POOLS.replace("hardware: h200", "gpus: 3")}, "unknown key pools.decode.gpus"),
    ],
)
def test_bad_pools(changes, complaint):
    with pytest.raises(ConfigError) as caught:
        service(**changes)
    assert complaint in str(caught.value)


def play_out(planned, num_requests):
    """The plan's pools in the simulator; their requests come at random, all of mean length."""
    config, pools, fleets = planned.config, planned.pools, []
    for pool, count in ((pools.prefill, pools.num_prefill), (pools.decode, pools.num_decode)):
        names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
        limits = {name: getattr(pool.config, name) for name in names}
        limits["num_blocks"] = memory_table(pool.config).num_blocks
        cost_model = pool.cost.cost_model
        replicas = [Replica(make_scheduler(limits), cost_model, keeps_steps=False) for _ in range(count)]
        fleets.append(Fleet(replicas, LeastOutstanding()))
    mean = config.workload
    lengths = [UniformLengths(count, count) for count in (mean.prompt_tokens, mean.output_tokens)]
    workload = RandomWorkload("plan", num_requests, Poisson(mean.rate), *lengths)
    link = Link(pools.pools.link_bytes_per_s, config.shape.kv_bytes_per_token, pools.pools.link_latency_s)
    run_pools(requests_of(workload), *fleets, link)
    return FleetReport(fleets[1], config.slo).total


def test_played_out_as_planned():
    """Nothing waits long, so that the steady state's times hold; a router that sees the load does better than the
    plan, whose engines get what comes at random."""
    planned = service()
    total = play_out(planned, 150)
    assert total.num_completed == total.goodput.num_met == 150
    assert total.latencies.tpot.mean == pytest.approx(planned.pools.tpot_s, rel=0.1)
    alone_s = planned.pools.ttft_with(10_000)
    assert 0.95 * alone_s < total.latencies.ttft.p50 < 1.05 * planned.pools.ttft_s
    few = play_out(service(pools=sized(2, 2)), 100)
    assert few.goodput.num_met < 50, "too few engines show"
