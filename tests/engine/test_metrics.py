"""What the engine says of itself: the queue's age, hits of the prefix cache, the share of the pool in use."""

import random
from types import ModuleType, SimpleNamespace

import pytest

from tests.engine.engines import make_engine, prompt_of
from tests.mutation import KillTable, Mutant
from twophase.core.request import SamplingParams
from twophase.engine import metrics

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def drain(engine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def test_the_age_of_the_queue(tiny_model):
    clock = Clock()
    engine = make_engine(tiny_model, max_num_seqs=1, clock=clock)
    for number, clock.now_s in enumerate((1.0, 3.0, 7.0)):
        engine.add_request(str(number), prompt_of(number, 5), PARAMS)
    engine.add_request("before", prompt_of(3, 5), PARAMS, arrival_s=2.0)  # told of late
    clock.now_s = 11.0
    clock.now_s = 12.0
    engine.step()  # lets in the first
    assert engine.trace[-1].queue_age_s == 10
    assert engine.abort("before") is not None
    clock.now_s = 13.0
    engine.step()
    assert engine.trace[-1].queue_age_s == 10, "'1', which came at 3.0"
    drain(engine)
    assert engine.trace[-1].queue_age_s is None


def test_a_preempted_request_is_in_the_queue_no_more(tiny_model):
    engine = make_engine(tiny_model, num_blocks=6, prefix_caching=False)
    for number in range(2):
        engine.add_request(
            str(number), prompt_of(number, 6), SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
        )
    drain(engine)
    preempted = [step for step in engine.trace if step.preempted]
    assert preempted
    assert all(step.num_waiting and step.queue_age_s is None for step in preempted)


def test_hits_of_the_prefix_cache_step_by_step(tiny_model):
    engine = make_engine(tiny_model)
    block_size = engine._scheduler.cache.block_size
    for name, length in (("a", 4 * block_size), ("b", 4 * block_size), ("c", 2 * block_size)):
        engine.add_request(
            name, {"prompt_token_ids": prompt_of(0, 4 * block_size)["prompt_token_ids"][:length]}, PARAMS
        )
        drain(engine)
    counted = [
        (step.prefix_cache_queries, step.prefix_cache_hits) for step in engine.trace if step.prefix_cache_queries
    ]
    whole = 4 * block_size
    assert counted == [(whole, 0), (whole, whole - block_size), (whole // 2, block_size)]
    stats = engine.stats()
    assert stats.cache.hit_rate == (whole - block_size + block_size) / (2.5 * whole)


def test_the_share_of_the_pool_in_use(tiny_model):
    engine = make_engine(tiny_model, num_blocks=20)
    engine.add_request("a", prompt_of(0, 30), PARAMS)
    engine.add_request("b", prompt_of(1, 9), PARAMS)
    assert (engine.stats().kv_cache_usage, engine.stats().kv_cache_usage_peak) == (0, 0)
    engine.step()
    assert engine.stats().kv_cache_usage == engine.trace[-1].kv_cache_usage == engine.trace[-1].blocks_in_use / 20 > 0
    drain(engine)
    assert engine.stats().kv_cache_usage == engine.trace[-1].kv_cache_usage == 0
    assert engine.stats().kv_cache_usage_peak == max(step.blocks_in_use for step in engine.trace) / 20 > 0.3


def check_waiting(module: ModuleType) -> None:
    """Against the definition, at random: requests come in any order, are scheduled or end in any order."""
    rng = random.Random(5)
    waiting, there = module.WaitingRequests(), []
    now_s = 0.0
    for _ in range(300):
        now_s += rng.random()
        if rng.random() < 0.5:
            request = SimpleNamespace(first_scheduled_s=None, finished_s=None)
            arrival_s = round(now_s - rng.random(), 1)  # some are equal
            waiting.add(arrival_s, request)
            there.append((arrival_s, request))
        elif there:
            _, request = there.pop(rng.randrange(len(there)))
            setattr(request, rng.choice(["first_scheduled_s", "finished_s"]), now_s)
        ages_s = [max(0.0, now_s - arrival_s) for arrival_s, _ in there]
        assert waiting.oldest_s(now_s) == max(ages_s, default=None)
    assert len(waiting._heap) < 300


def test_the_queue_by_definition():
    check_waiting(metrics)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("who was scheduled waits", "request.first_scheduled_s is not None or request", "request"),
        (
            "who ended waits",
            "request.first_scheduled_s is not None or request.finished_s is not None",
            "request.first_scheduled_s is not None",
        ),
        ("the newest", "(arrival_s, self._num_added, request))", "(-arrival_s, self._num_added, request))"),
        ("equal arrivals", "self._num_added += 1", "pass"),
        ("one of them", "while self._heap and _has_left", "if self._heap and _has_left"),
    ],
)
def test_mutants_of_the_queue_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase.engine.metrics", old, new), check_waiting)
