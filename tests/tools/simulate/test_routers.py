"""Routers by hand, and what each is for: hits, load, length. What they ask a replica holds with and without leaps."""

import random

import pytest

from tests.tools.simulate.runs import make_scheduler, request
from twophase.core.errors import ConfigError
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.fleet import run_fleet
from twophase_tools.simulate.fleet_report import FleetReport
from twophase_tools.simulate.routers import (
    ByLength,
    LeastOutstanding,
    LeastTokens,
    PrefixAware,
    RoundRobin,
)
from twophase_tools.simulate.simulator import Replica

SECOND = LinearCostModel(1.0)
PER_TOKEN = LinearCostModel(0.01, per_token_s=0.01)


def replicas_of(count, cost_model=SECOND, **options):
    return [Replica(make_scheduler(**options), cost_model) for _ in range(count)]


def served_by(router, requests, count=2, cost_model=SECOND, **options):
    replicas = replicas_of(count, cost_model, **options)
    run_fleet(requests, replicas, router)
    return [sorted(record.request_id for record in replica.records) for replica in replicas]


class TestWhatAReplicaTells:
    def test_tokens_by_hand(self):
        """A prompt of 5 and 3 outputs, one step a second: 5 tokens until 1 s, then one more a second, 0 from 3 s on."""
        (replica,) = replicas_of(1)
        replica.submit(request("a", 0, 5, 3))
        for time_s, expected in ((0.5, 5), (1.0, 6), (1.5, 6), (2.0, 7), (2.5, 7), (3.5, 0)):
            replica.run_until(time_s)
            assert replica.num_outstanding_tokens(time_s) == expected, time_s

    def test_busy_by_hand(self):
        """One place: b waits from 1 s until a ends at 3 s, and is done at 4 s."""
        (replica,) = replicas_of(1, max_num_seqs=1)
        replica.submit(request("a", 0, 5, 3))
        replica.run_until(1.0)
        replica.submit(request("b", 1.0, 5, 1))
        for time_s, busy_s in ((1.5, 1.5), (2.5, 2.5), (3.5, 3.5), (9.0, 4.0)):
            replica.run_until(time_s)
            assert replica.busy_s(time_s) == busy_s
        assert replica.capacity_tokens == 64 * 4


def test_least_tokens_counts_tokens():
    """Two short requests on one engine weigh less than a long one on the other."""
    requests = [request("long", 0, 40, 2), *(request(f"s{i}", 0.1 + i / 10, 4, 2) for i in range(3))]
    assert served_by(LeastTokens(), requests) == [["long"], ["s0", "s1", "s2"]]
    assert served_by(LeastOutstanding(), requests) == [["long", "s1"], ["s0", "s2"]]


class TestPrefixAware:
    def conversations(self, count=3, turns=6):
        """Each turn continues its own conversation, the order is mixed, and nothing overlaps in time."""
        histories = {i: list(range(1000 * i, 1000 * i + 20)) for i in range(count)}
        rng, requests = random.Random(0), []
        for turn in range(turns * count):
            who = rng.randrange(count)
            histories[who] += range(90_000 + 8 * turn, 90_000 + 8 * turn + 8)
            requests.append(request(f"{who}-{turn}", 100.0 * turn, histories[who][:60], 1))
        return requests

    def hits(self, router, requests, count=3):
        replicas = replicas_of(count, num_blocks=128)
        run_fleet(requests, replicas, router)
        records = [record for replica in replicas for record in replica.records]
        return sum(record.num_cached_tokens for record in records)

    def test_conversations_stay_where_they_are(self):
        """Every turn after a conversation's first hits all full blocks before it, as on a single engine."""
        requests = self.conversations()
        router = PrefixAware(block_size=4)
        assert self.hits(router, requests) == self.hits(RoundRobin(), requests, count=1)
        assert self.hits(RoundRobin(), requests) < 0.8 * self.hits(router, requests)

    def test_load_outweighs_a_hit(self):
        """20 tokens are cached on the first engine, which is busy with 60: a hit is worth moving only if it weighs 3."""
        prefix = tuple(range(20))
        requests = [request("a", 0, prefix, 1), request("b", 50, 60, 4), request("c", 50.5, (*prefix, 5, 6), 1)]
        # b goes to the second engine by turns; so that it meets the prefix, the first one is given it again.
        requests.insert(1, request("d", 20, (*range(500, 504),), 1))
        assert served_by(PrefixAware(1, block_size=4), requests, budget=64)[1] == ["c", "d"]
        assert served_by(PrefixAware(4, block_size=4), requests, budget=64)[0] == ["a", "b", "c"]

    def test_salts_are_kept_apart(self):
        from dataclasses import replace

        prompt = tuple(range(24))
        salted = [replace(request(str(i), 100.0 * i, prompt, 1), cache_salt=salt) for i, salt in enumerate("xyxy")]
        assert served_by(PrefixAware(block_size=4), salted) == [["0", "2"], ["1", "3"]]

    def test_what_was_sent_long_ago_is_forgotten(self):
        """An index of 4 blocks an engine: the last request, whose prompt is that of the first, finds nothing, and goes by
        turns."""
        router = PrefixAware(block_size=4, index_share=1 / 16)
        requests = [
            request(str(i), 100.0 * i, tuple(range(base, base + 17)), 1) for i, base in enumerate((0, 50, 100, 150, 0))
        ]
        requests = [*requests[:3], requests[-1]]
        assert served_by(router, requests) == [["0", "2"], ["1", "4"]]
        assert [len(sent) for sent in router._sent.values()] == [4, 4]
        roomy = PrefixAware(block_size=4)
        assert served_by(roomy, [*requests[:2], requests[-1]]) == [["0", "4"], ["1"]]

    def test_an_engine_that_left_is_forgotten(self):
        router = PrefixAware(block_size=4)
        first, second = replicas_of(2)
        prompt = request("a", 0, 24, 1)
        assert [router.choose([first, second], prompt), router.choose([second], prompt)] == [0, 0]
        assert list(router._sent) == [second]


def test_short_prompts_do_not_wait_behind_long_ones():
    """A long prompt of 60 tokens takes 60 steps' time; a short one beside it must not feel it."""
    requests = [request(f"{'L' if i % 4 == 0 else 's'}{i}", i * 0.15, 60 if i % 4 == 0 else 4, 2) for i in range(30)]

    def slowest_short(router):
        replicas = replicas_of(3, PER_TOKEN, budget=64)
        run_fleet(requests, replicas, router)
        records = [record for replica in replicas for record in replica.records if record.request_id[0] == "s"]
        return max(record.ttft_s for record in records)

    apart = ByLength(30, num_long=1)
    assert slowest_short(apart) < 0.15 < slowest_short(RoundRobin())
    short, also_short, long = served_by(ByLength(30), requests, 3)
    assert {name[0] for name in short + also_short} == {"s"}
    assert {name[0] for name in long} == {"L"}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: PrefixAware(weight=float("nan")), "from 0 to"),
        (lambda: PrefixAware(block_size=0.5), "whole number of at least 1"),
        (lambda: PrefixAware(index_share=2), r"in \(0, 1\]"),
        (lambda: ByLength(num_long=0), "at least 1"),
        (lambda: ByLength(limit_tokens=-1), "at least 0"),
        (lambda: served_by(ByLength(10, num_long=2), [request("a", 0, 4, 1)]), "2 engines for long prompts leave none"),
    ],
)
def test_bad_parameters(make, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_the_report_adds_up():
    """In turn: a and c on the first engine, where c waits for a; b on the second."""
    requests = [request(*each) for each in (("a", 0, 4, 2), ("b", 0, 4, 2), ("c", 0, 4, 1))]
    fleet = run_fleet(requests, replicas_of(2, max_num_seqs=1), RoundRobin())
    report = FleetReport(fleet, Slo(ttft_s=1.5))
    total = report.total
    assert (total.num_completed, total.num_prompt_tokens, total.num_output_tokens) == (3, 12, 5)
    assert (total.window_s, total.goodput.num_met, total.latencies.ttft.max) == (3.0, 2, 3.0)
    assert report.balance == pytest.approx(11 / 8.5)
    assert (report.engine_s, report.busy_share) == (6.0, 5 / 6)
    lines = report.to_text().splitlines()
    assert lines[1].split()[:2] == ["engine", "0"]
    assert [line.split()[-1] for line in lines[1:3]] == ["100%", "67%"]  # busy for 3 and 2 of 3 seconds
    engines = report.to_dict()["engines"]
    assert [(each["num_requests"], each["goodput"]["num_met"]) for each in engines] == [(2, 1), (1, 1)]
