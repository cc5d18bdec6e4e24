"""A sharded model without processes: a thread for each rank."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch

from tests.parallel.thread_peers import ThreadPeers, lines_between
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import ModelRunner
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, attention_spec
from twophase.model.machine import make_backend
from twophase.model.weights import load_weights
from twophase_features.parallel import sharding

CPU = torch.device("cpu")
BLOCK_SIZE = 4


def whole_runner(folder: Path) -> ModelRunner:
    config = load_config(folder)
    return _runner(config, load_weights(folder, config, torch.float32, CPU), None)


def sharded_logits(
    folder: Path,
    world_size: int,
    steps: list[list[ScheduledChunk]],
    module: ModuleType = sharding,
    dispatcher: type | None = None,
) -> list[torch.Tensor]:
    """The logits of each step, computed by `world_size` ranks that share the model as `module` says.

    `dispatcher` is `ExpertParallel` if each rank is to have whole experts.
    """
    config = load_config(folder)
    barrier, lines = threading.Barrier(world_size, timeout=20), lines_between(world_size)

    def rank_logits(rank: int) -> list[torch.Tensor]:
        shard = module.Shard(config, rank, world_size, dispatcher is not None)
        weights = load_weights(folder, config, torch.float32, CPU, shard.cut, shard.experts)
        peers = ThreadPeers(rank, lines, barrier)
        runner = _runner(
            shard.config, weights, lambda x: peers.all_reduce(x, "a sum"), dispatcher and dispatcher(peers)
        )
        try:
            return [runner.run(chunks) for chunks in steps]
        except BaseException as error:  # the others hear of it where they wait for this rank
            for other in range(world_size):
                lines[rank, other].put(error)
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(rank_logits, rank) for rank in range(world_size)]
    by_rank = [future.result() for future in futures]
    return [torch.cat(parts, dim=1) for parts in zip(*by_rank, strict=True)]


def _runner(config: ModelConfig, weights, add, dispatch=None) -> ModelRunner:
    backend = make_backend("torch", attention_spec(config), device=CPU, dtype=torch.float32, block_size=BLOCK_SIZE)
    spec = KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, torch.float32)
    return ModelRunner(LlamaModel(config, weights, backend, 64, add, dispatch), KVCache(spec, 16, CPU), 64)
