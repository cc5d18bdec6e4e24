"""Engines over tiny models, and what the tests do with them again and again."""

import torch

from tests.cache.integrity import check_integrity
from tests.cache.plain import typed_cache
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner
from twophase.model.llama import LlamaModel
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler
from twophase_features.offloading.host_memory import HostMemoryTier
from twophase_features.windows.layer_groups import layer_groups
from twophase_features.windows.sliding_window import SlidingWindow

BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def make_engine(
    model: LlamaModel,
    *,
    num_blocks: int = 96,
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int = 128,
    chunked: bool = True,
    prefix_caching: bool = True,
    policy=None,
    num_host_blocks: int = 0,
    codec=None,
    eos=frozenset(),
    guidance=None,
    engine_class=Engine,
    **options,
) -> Engine:
    config = model.config
    groups = layer_groups(config)
    num_layers, options_of_cache = config.num_layers, {}
    if groups is not None:
        num_layers = groups.size
        options_of_cache = {"window": SlidingWindow(config.sliding_window), "sees_all": groups.sees_all}
    spec = KVCacheSpec(num_layers, config.num_kv_heads, config.head_dim, block_size, torch.float32)
    kv_cache = KVCache(spec, num_blocks, model.device, layout=None if groups is None else groups.layout)
    limits = SchedulerConfig(max_num_seqs, budget, max_model_len, chunked)
    tier = HostMemoryTier(num_host_blocks) if num_host_blocks else None
    cache = typed_cache(num_blocks, block_size, prefix_caching, tier=tier, **options_of_cache)
    scheduler = Scheduler(limits, cache, policy)
    runner = ModelRunner(model, kv_cache, max_model_len)
    options["compile_grammar"] = guidance and guidance.compile
    return engine_class(runner, scheduler, vocab_size=config.vocab_size, codec=codec, eos_token_ids=eos, **options)


def with_backend(model: LlamaModel, backend) -> LlamaModel:
    """The same model computing attention with another backend."""
    return LlamaModel(model.config, model.weights, backend)


def prompt_of(seed: int, length: int, vocab_size: int = 131) -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return {"prompt_token_ids": torch.randint(3, vocab_size, (length,), generator=generator).tolist()}


def finish(engine: Engine, max_steps: int = 2000) -> dict[str, RequestOutput]:
    """Step until nothing is left; each request's last output."""
    outputs = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            check_idle(engine)
            return outputs
        outputs |= {output.request_id: output for output in engine.step()}
    raise AssertionError(f"not finished after {max_steps} steps")


def run(engine: Engine, prompts, params=GREEDY) -> list[RequestOutput]:
    """Serve the prompts together; `params` for all or one for each."""
    several = params if isinstance(params, list) else [params] * len(prompts)
    for i, (prompt, each) in enumerate(zip(prompts, several, strict=True)):
        engine.add_request(str(i), prompt, each)
    outputs = finish(engine)
    return [outputs[str(i)] for i in range(len(prompts))]


def tokens_of(output: RequestOutput, index: int = 0) -> list[int]:
    return list(output.outputs[index].token_ids)


def check_idle(engine: Engine) -> None:
    """Nothing runs, nothing waits, no block is held, and the cache's books agree."""
    stats = engine.stats()
    assert (stats.num_waiting, stats.num_running, stats.cache.num_in_use) == (0, 0, 0)
    check_integrity(engine._scheduler.cache)
