"""Pools of prefill and decode engines: planned by hand, proposed, refused, and played out as they were planned."""

import json

import pytest

from tests.tools.capacity.plans import IDEAL, plan, text
from twophase.core.errors import ConfigError
from twophase_tools.capacity.cautions import cautions_of
from twophase_tools.capacity.engine_section import engine_options
from twophase_tools.capacity.report import to_dict, to_text
from twophase_tools.capacity.simulation import run_plan, workload_of
from twophase_tools.load.workloads import Load

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
            use = max(pools.utilisation(pools.prefills_per_s, prefill), pools.utilisation(pools.decodes_per_s, decode))
            return use <= 0.8 and slo.is_met(pools.ttft_s, pools.tpot_s)

        assert is_enough(pools.num_prefill, pools.num_decode)
        assert not is_enough(pools.num_prefill - 1, pools.num_decode)
        assert not is_enough(pools.num_prefill, pools.num_decode - 1)
        assert pools.num_gpus == pools.num_prefill + pools.num_decode

    def test_a_tighter_promise_takes_more_engines(self):
        tight = service(slo="{ttft_s: 0.5, tpot_s: 0.007}").pools
        assert tight.num_decode > service().pools.num_decode
        assert tight.tpot_s <= 0.007

    def test_gpus_of_several_per_engine(self):
        pools = POOLS.replace("{hardware: h200}", "{hardware: h200, tensor_parallel_size: 2}")
        found = service(pools=pools).pools
        assert found.num_gpus == found.num_prefill + 2 * found.num_decode

    def test_a_promise_that_no_number_keeps(self):
        impossible = service(slo="{tpot_s: 0.001}")
        assert (impossible.pools.num_decode, impossible.pools.num_gpus) == (None, None)
        (caution,) = cautions_of(impossible)
        assert (caution.name, "decode pool" in caution.reason) == ("pools-miss-promise", True)
        assert "no number of engines" in to_text(impossible)
        with pytest.raises(ConfigError, match="no number of engines in the decode pool would do"):
            run_plan(impossible)


class TestReports:
    def test_text_and_json(self):
        shown, data = to_text(service()), to_dict(service())["pools"]
        assert "6 engines of 1 x NVIDIA H100 SXM, proposed" in shown
        assert "2 engines of 1 x NVIDIA H200 SXM, proposed" in shown
        assert "no warnings" in shown
        assert (data["prefill"]["num_engines"], data["decode"]["num_engines"], data["num_gpus"]) == (6, 2, 8)
        json.dumps(data, allow_nan=False)
        assert to_dict(plan())["pools"] is None

    @pytest.mark.parametrize(
        ("changes", "name", "reason"),
        [
            ({"pools": sized(3, 2)}, "pool-overloaded", "3 engines of the prefill pool take at most"),
            ({"pools": sized(6, 1)}, "pool-overloaded", "1 engines of the decode pool take at most"),
            ({"pools": sized(5, 9), "slo": "{ttft_s: 0.11}"}, "pools-miss-promise", "mean TTFT"),
            ({"pools": sized(9, 2), "slo": "{tpot_s: 0.007}"}, "pools-miss-promise", "mean TPOT"),
            (
                {"pools": sized(9, 2), "model": "llama-3-70b"},
                "pool-without-room",
                "an engine of the prefill pool, 1 x NVIDIA H100 SXM, has 0 blocks",
            ),
        ],
    )
    def test_cautions(self, changes, name, reason):
        found = {caution.name: caution.reason for caution in cautions_of(service(**changes))}
        assert reason in found[name]

    def test_pools_are_not_one_engine(self):
        with pytest.raises(ConfigError, match="pools have two kinds"):
            engine_options(service())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pools": sized(0, 1)}, "pools.prefill.engines leaves this pool without GPUs"),
        ({"pools": sized(1, 0)}, "pools.decode.engines leaves this pool without GPUs"),
        (
            {"pools": "{prefill: {tensor_parallel_size: 0}, decode: {engines: 1}, link_bytes_per_s: 1e9}"},
            "pools.prefill.tensor_parallel_size leaves this pool without GPUs",
        ),
        ({"pools": "{prefill: {engines: 1}, link_bytes_per_s: 1e9}"}, "pools.decode is missing"),
        ({"pools": "{prefill: {engines: 1}, decode: {engines: 1}}"}, "pools.link_bytes_per_s is missing"),
        ({"pools": POOLS.replace("50e9", "0")}, "pools.link_bytes_per_s must be a number of at least 1"),
        ({"pools": POOLS.replace("h200", "h300")}, "did you mean h200?"),
        ({"pools": POOLS.replace("hardware: h200", "gpus: 3")}, "unknown key pools.decode.gpus"),
        ({"pools": POOLS, "eviction": "{window: 64}"}, "pools send all of a prompt's K and V"),
        (
            {
                "hardware": "{memory: 80 GB, flops_per_s: 1e15, bytes_per_s: 1e12}",
                "pools": "{prefill: {tensor_parallel_size: 2}, decode: {engines: 1}, link_bytes_per_s: 1e9}",
            },
            "pools.prefill.hardware needs link_bytes_per_s",
        ),
    ],
)
def test_bad_pools(changes, complaint):
    with pytest.raises(ConfigError) as caught:
        service(**changes)
    assert complaint in str(caught.value)


class TestPlayedOut:
    def test_as_planned(self):
        """Nothing waits long, so that the steady state's times hold; a router that sees the load does better than the
        plan, whose engines get what comes at random."""
        planned = service()
        result = run_plan(planned, workload_of(planned.config, Load(num_requests=300)))
        assert result.total.num_requests == result.total.num_kept == 300
        assert result.total.tpot.mean == pytest.approx(planned.pools.tpot_s, rel=0.1)
        alone_s = planned.pools.ttft_with(10_000)
        assert 0.95 * alone_s < result.total.ttft.percentile(50) < 1.05 * planned.pools.ttft_s
        prefill, decode = result.reports
        assert [len(report.fleet.lives) for report in result.reports] == [6, 2]
        assert (prefill.name, decode.name) == ("prefill", "decode")

    def test_engines_that_do_both(self):
        planned = plan(**SERVICE)
        load = workload_of(planned.config, Load(num_requests=60))
        assert len(run_plan(planned, load).reports[0].fleet.lives) == 6  # at 80 %
        assert len(run_plan(planned, load, num_engines=9).reports[0].fleet.lives) == 9

    def test_too_few_engines_show(self):
        load = workload_of(service().config, Load(num_requests=200))
        few, enough = (run_plan(service(pools=sized(n, 2)), load).total for n in (2, 6))
        assert few.num_kept < 0.5 * enough.num_kept

    @pytest.mark.parametrize(
        ("changes", "options", "complaint"),
        [
            (
                {"pools": sized(1, 1), "model": "llama-3-70b"},
                {},
                "not even one request fits on an engine of the prefill",
            ),
            ({"pools": None, "model": "llama-3-70b"}, {}, "not even one request of mean length fits"),
            ({"pools": None, "eviction": "{window: 64}"}, {}, "set eviction to none"),
            ({}, {"num_engines": 3}, "has pools, which say how many"),
        ],
    )
    def test_what_cannot_be_played_out(self, changes, options, complaint):
        with pytest.raises(ConfigError, match=complaint):
            run_plan(service(**changes), **options)

    def test_the_command(self, twophase, tmp_path):
        path = tmp_path / "plan.yaml"
        path.write_text(text(**SERVICE, pools=POOLS))
        assert "6 engines" in twophase("plan", path)[1]
        code, out, _ = twophase("simulate", "--plan", path, "--requests", 40, "--json")
        result = json.loads(out)
        assert (code, result["num_requests"], result["num_kept"]) == (0, 40, 40)
        assert [len(fleet["engines"]) for fleet in result["fleets"]] == [6, 2]
        code, out, _ = twophase("simulate", "--plan", path, "--workload", "chat", "--requests", 40, "--router", "hash")
        assert (code, "40 requests" in out, "decode" in out) == (0, True, True)
        for option, value in (("--hardware", "h100"), ("--slo-ttft", 1), ("--policy", "fair"), ("--replicas", 3)):
            code, _, err = twophase("simulate", "--plan", path, option, value)
            assert code == 2
            assert "--plan" in err or "has pools" in err


def test_ideal_hardware_by_hand():
    """One layer's arithmetic is tested elsewhere; here, that the pool takes the assumptions of the plan."""
    fast, slow = service().pools, service(assumptions=IDEAL).pools
    assert slow.decode.cost.cost_model.assumptions.schedule_s == 2
    assert slow.decodes_per_s < fast.decodes_per_s
