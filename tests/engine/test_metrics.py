"""What the engine says of itself: the queue's age, hits of the prefix cache, the share of the pool in use."""

from tests.engine.engines import make_engine, prompt_of
from twophase.core.request import SamplingParams

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
