"""Prefill and decode in pools: times by hand, nothing lost, and unequal hardware where it helps."""

import random

import pytest

from tests.cache.integrity import check_integrity
from tests.tools.simulate.runs import make_scheduler, random_requests, request
from twophase.core.errors import ConfigError
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.fleet import Fleet
from twophase_tools.simulate.pools import Link, run_pools
from twophase_tools.simulate.routers import LeastOutstanding, RoundRobin
from twophase_tools.simulate.simulator import Replica

SECOND = LinearCostModel(1.0)
SLOW, FAST = LinearCostModel(4.0), LinearCostModel(1.0)


def pool(count=1, cost_model=SECOND, router=RoundRobin, **options):
    return Fleet([Replica(make_scheduler(**options), cost_model) for _ in range(count)], router())


def records_of(fleet):
    records = [record for replica in fleet.replicas for record in replica.records]
    return {record.request_id: record for record in records}


def test_times_by_hand():
    """Prompt until 1 s, 8 tokens of 10 bytes at 40 bytes/s and half a second of latency until 3.5 s; then each token
    takes a second, the first one with what is left of the prompt."""
    prefill, decode = pool(), pool()
    run_pools([request("a", 0, 8, 4)], prefill, decode, Link(40, 10, latency_s=0.5))
    record = records_of(decode)["a"]
    assert record.token_times_s == (4.5, 5.5, 6.5, 7.5)
    assert (record.arrival_s, record.first_scheduled_s, record.finished_s, record.ttft_s) == (0, 0, 7.5, 4.5)
    assert records_of(prefill)["a"].finished_s == 1.0


def test_prompts_share_a_sender_s_link():
    """Two prompts done at 1 s by one engine: the second is sent when the first has left, latencies overlap. By two
    engines: at once."""
    requests = [request("a", 0, 4, 1), request("b", 0, 4, 1)]
    link = Link(4, 1, latency_s=2)
    for count, second_s in ((1, 6.0), (2, 5.0)):
        decode = pool()
        run_pools(requests, pool(count), decode, link)
        ends = sorted(record.finished_s for record in records_of(decode).values())
        assert ends == [5.0, second_s]


def test_who_arrives_first_goes_on_first():
    """At a byte per second: a, done at 1 s, arrives at 9 s, and b, done at 2.5 s on another engine, at 3.5 s."""
    requests = [request("a", 0, 8, 1), request("b", 1.5, 1, 1), request("c", 2, 1, 1)]
    decode = pool()
    run_pools(requests, pool(2), decode, Link(1, 1))
    ends = {name: record.finished_s for name, record in records_of(decode).items()}
    assert ends == {"a": 10, "b": 4.5, "c": 11}  # c's K and V leave when a's have left


def test_a_step_under_way_ends_before_a_newcomer_goes_on():
    """The decode engine is in a step from 2.1 to 3.1 s when b's K and V arrive at 2.5 s."""
    decode = pool()
    run_pools([request("a", 0, 4, 5), request("b", 1.4, 4, 2)], pool(), decode, Link(4e9, 1, latency_s=0.1))
    assert records_of(decode)["a"].token_times_s == pytest.approx((2.1, 3.1, 4.1, 5.1, 6.1))
    assert records_of(decode)["b"].token_times_s == pytest.approx((4.1, 5.1))


def test_a_full_decode_pool_lets_them_wait():
    """One place: b is admitted when a has ended. It counts as waiting from its K and V's arrival on."""
    decode = pool(max_num_seqs=1)
    replica = decode.replicas[0]
    run_pools([request("a", 0, 4, 4), request("b", 0, 4, 2)], pool(), decode, Link(4e9, 1))
    assert records_of(decode)["b"].token_times_s == pytest.approx((6.0, 7.0))
    assert replica.num_outstanding(9) == 0


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_stays(seed):
    """Random requests, forks among them, through small pools: every token, and every block free."""
    requests = random_requests(random.Random(seed), 40, 0.5, 40)

    def make(blocks, places):
        scheduler = make_scheduler(num_blocks=blocks, max_num_seqs=places, budget=16)
        return scheduler, Replica(scheduler, SECOND)

    sides = [[make(40, 4) for _ in range(2)], [make(24, 4) for _ in range(2)]]
    prefill, decode = (Fleet([replica for _, replica in side], LeastOutstanding()) for side in sides)
    run_pools(requests, prefill, decode, Link(50, 1, latency_s=0.1))
    records = records_of(decode)
    assert len(records) == 40
    for each in requests:
        params, record = each.sampling_params, records[each.request_id]
        assert record.num_output_tokens == params.n * params.max_tokens
        assert record.finish_reason == "length"
        assert record.token_times_s[0] > record.first_scheduled_s >= each.arrival_s
        assert list(record.token_times_s) == sorted(record.token_times_s)
    for scheduler, _ in (*sides[0], *sides[1]):
        assert (scheduler.has_unfinished, scheduler.cache.stats().num_in_use) == (False, 0)
        check_integrity(scheduler.cache)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0, 1), "bytes_per_s must be"),
        ((float("inf"), 1), "bytes_per_s must be"),
        ((1, 0), "bytes_per_token must be"),
        ((1, 1, -1), "latency_s must be"),
        ((1, 1, float("nan")), "latency_s must be"),
    ],
)
def test_bad_links(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Link(*arguments)
