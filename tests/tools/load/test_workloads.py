"""Workloads are what they say: totals, distributions, and the same for the same seed."""

import dataclasses
import itertools
import math
import random
import statistics

import pytest

from twophase.core.errors import ConfigError
from twophase_tools.load import arrivals, lengths, workloads


def times(process, count=20_000, seed=0):
    return list(itertools.islice(process.times_s(random.Random(seed)), count))


def gaps(process, count=20_000):
    moments = times(process, count)
    return [later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False)]


# The mean of n gaps has a relative standard error of cv / sqrt(n); five of those are met by all but one seed in a million.
@pytest.mark.parametrize("cv", [0.25, 1, 3])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv):
    process = arrivals.Poisson(4) if cv == 1 else arrivals.Bursty(4, cv)
    found = gaps(process)
    assert statistics.mean(found) == pytest.approx(1 / 4, rel=5 * cv / math.sqrt(len(found)))
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(cv, rel=0.1)
    assert min(found) >= 0


def draws(distribution, count=20_000):
    rng = random.Random(0)
    return [distribution.draw(rng) for _ in range(count)]


def test_lengths():
    uniform = draws(lengths.UniformLengths(3, 9))
    assert set(uniform) == set(range(3, 10))
    assert statistics.mean(uniform) == pytest.approx(6, rel=0.02)
    clipped = draws(lengths.LogNormalLengths(100, 1.0, 10, 1000))
    assert (min(clipped), max(clipped)) == (10, 1000)
    assert statistics.median(clipped) == pytest.approx(100, rel=0.05)
    # One in a hundred is below 10, at -2.3 standard deviations, and as many are above 1000.
    assert clipped.count(1000) / len(clipped) == pytest.approx(0.0107, rel=0.3)
    assert set(draws(lengths.LogNormalLengths(50, 0, 1, 100), 5)) == {50}
    assert set(draws(lengths.LogNormalLengths(50, 1e6, 1, 100), 99)) == {1, 100}  # nothing overflows


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arrivals.Poisson(0), "rate_per_s must be a finite number .* got 0"),
        (lambda: arrivals.Poisson(math.nan), "got nan"),
        (lambda: arrivals.Bursty(1, 0), "cv must be"),
        (lambda: arrivals.Bursty(0, 1), "rate_per_s must be"),
        (lambda: lengths.UniformLengths(0, 5), "low must be a whole number >= 1, got 0"),
        (lambda: lengths.UniformLengths(6, 5), "low=6 and high=5"),
        (lambda: lengths.LogNormalLengths(0, 1, 1, 5), "median"),
        (lambda: lengths.LogNormalLengths(3, -1, 1, 5), "sigma"),
        (lambda: workloads.SharedPrefix(0, 5), "num_groups must be"),
        (lambda: workloads.SharedPrefix(1, 0), "num_tokens must be"),
        (lambda: workloads.named_workload("chat", workloads.Load(num_requests=0)), "num_requests must be"),
        (lambda: workloads.named_workload("nonsense"), "'nonsense'; there are chat, "),
        (lambda: workloads.named_workload("benchmark", workloads.Load(num_requests=257)), "1 to 256, got 257"),
        (lambda: workloads.named_workload("benchmark", workloads.Load(cv=2)), "needs a rate"),
        (lambda: workloads.TimedRequest("r", -1, 1, 1), "arrival_s .* got -1"),
        (lambda: workloads.TimedRequest("r", 0, 0, 1), "num_prompt_tokens must be"),
        (lambda: workloads.TimedRequest("r", 0, 1, 0), "num_output_tokens must be"),
        (lambda: workloads.TimedRequest("r", 0, 3, 1, num_prefix_tokens=4), "prefix of 4"),
        (lambda: workloads.TimedRequest("r", 0, 3, 1, prompt_token_ids=(1,)), "1 prompt_token_ids"),
        (lambda: workloads.token_ids_of(workloads.benchmark_requests()[0], 50), "vocabulary ends at 50"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_a_workload_is_the_same_each_time_and_in_order(name):
    workload = workloads.named_workload(name, workloads.Load(num_requests=12))
    assert isinstance(workload, workloads.Workload)
    requests = list(workload)
    assert requests == list(workload) == list(workloads.named_workload(name, workloads.Load(num_requests=12)))
    assert len({request.request_id for request in requests}) == len(requests) == 12
    arrivals_s = [request.arrival_s for request in requests]
    assert arrivals_s == sorted(arrivals_s)
    assert requests != list(workloads.named_workload(name, workloads.Load(num_requests=12, seed=1)))


def test_other_arrivals_bring_the_same_requests():
    loads = [workloads.Load(rate_per_s=1), workloads.Load(rate_per_s=2), workloads.Load(rate_per_s=1, cv=3)]
    slow, fast, bursty = (list(workloads.named_workload("shared-prefix", load)) for load in loads)
    assert [each.arrival_s for each in fast] == pytest.approx([each.arrival_s / 2 for each in slow])
    assert [each.arrival_s for each in bursty] != [each.arrival_s for each in slow]
    for other in (fast, bursty):
        assert [dataclasses.replace(each, arrival_s=0) for each in other] == [
            dataclasses.replace(each, arrival_s=0) for each in slow
        ]


def test_token_ids_depend_on_seed_and_request_alone():
    requests = list(workloads.named_workload("shared-prefix", workloads.Load(num_requests=8)))
    prompts = [workloads.token_ids_of(request, 500) for request in requests]
    assert prompts == [workloads.token_ids_of(request, 500) for request in requests]
    assert workloads.token_ids_of(requests[0], 500, seed=1) != prompts[0]
    assert [len(prompt) for prompt in prompts] == [request.num_prompt_tokens for request in requests]
    assert {token for prompt in prompts for token in prompt} <= set(range(500))
    beginnings = {}
    for request, prompt in zip(requests, prompts, strict=True):
        assert beginnings.setdefault(request.prefix, prompt[:256]) == prompt[:256]
    assert len(set(beginnings.values())) == len(beginnings) == 2
    assert len({prompt[256:260] for prompt in prompts}) == 8


def test_a_share_of_the_blocks_holds_at_least_the_largest_request():
    requests = (workloads.TimedRequest("a", 0, 3, 14), workloads.TimedRequest("b", 0, 1, 2))
    blocks = [
        workloads.num_pool_blocks(workloads.FixedWorkload("two", requests, share), 16) for share in (None, 1, 0.9, 0.1)
    ]
    assert blocks == [None, 3, 3, 2]
    # A quarter of the blocks of 16 that the benchmark fills.
    needs = sum(math.ceil((len(r.prompt_token_ids) + r.num_output_tokens) / 16) for r in workloads.benchmark_requests())
    assert workloads.num_pool_blocks(workloads.named_workload("benchmark-pressure"), 16) == math.ceil(needs / 4)


def test_the_common_benchmark():
    """142,827 input and 133,966 output tokens: the totals that nano-vllm's README reports are measured on."""
    requests = workloads.benchmark_requests()
    assert sum(len(request.prompt_token_ids) for request in requests) == 142_827
    assert sum(request.num_output_tokens for request in requests) == 133_966
    # Drawn once more the way bench.py does it, with the module's own generator.
    random.seed(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    outputs = [random.randint(100, 1024) for _ in range(256)]
    assert [list(request.prompt_token_ids) for request in requests] == prompts
    assert [request.num_output_tokens for request in requests] == outputs
    pressure = workloads.named_workload("benchmark-pressure")
    assert (pressure.pool_share, pressure.requests) == (0.25, workloads.named_workload("benchmark").requests)
    timed = list(workloads.named_workload("benchmark", workloads.Load(num_requests=10, rate_per_s=5)))
    assert [r.prompt_token_ids for r in timed] == [r.prompt_token_ids for r in requests[:10]]
    assert 0 < timed[0].arrival_s < timed[9].arrival_s
