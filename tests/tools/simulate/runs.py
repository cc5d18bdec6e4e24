"""Small simulations: a scheduler over few blocks, requests by length, cost models whose arithmetic is done by hand."""

import random

from twophase.cache.manager import CacheManager
from twophase.core.request import Request, SamplingParams
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler
from twophase_features.offloading.host_memory import HostMemoryTier


def make_scheduler(
    num_blocks=64,
    block_size=4,
    caching=True,
    policy=None,
    *,
    max_num_seqs=4,
    budget=8,
    max_model_len=64,
    num_host_blocks=0,
    **options,
) -> Scheduler:
    tier = HostMemoryTier(num_host_blocks) if num_host_blocks else None
    config = SchedulerConfig(max_num_seqs, budget, max_model_len, **options)
    return Scheduler(config, CacheManager(num_blocks, block_size, caching, tier=tier), policy)


def request(name: str, arrival_s: float | int, prompt, output_len: int, n: int = 1, priority: int = 0, ttft_slo_s=None):
    """`prompt` is its tokens, or how many (then they are all its own)."""
    if isinstance(prompt, int):
        base = 1000 * (1 + sum(map(ord, name)))
        prompt = range(base, base + prompt)
    params = SamplingParams(max_tokens=output_len, n=n, ignore_eos=True)
    return Request(name, tuple(prompt), params, arrival_s=arrival_s, priority=priority, ttft_slo_s=ttft_slo_s)


def random_requests(rng: random.Random, count: int, rate: float, longest: int) -> list[Request]:
    """Poisson arrivals; some share a prefix, some fork, some are urgent."""
    now_s, requests = 0.0, []
    for i in range(count):
        now_s += rng.expovariate(rate)
        shared = [7] * rng.choice([0, 0, 4, 9])
        own = [100 + i] * rng.randint(1, longest // 2)
        n = rng.choice([1, 1, 1, 1, 1, 2, 3])
        output_len = rng.randint(1, longest // 2)
        requests.append(
            request(f"r{i}", now_s, shared + own, output_len, n, rng.choice([0, 0, 0, 1]), rng.choice([None, 0.1, 0.5]))
        )
    return requests
