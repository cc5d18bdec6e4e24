"""A KV tier in host memory: a preempted sequence's blocks are offloaded when they are evicted, and loaded when it is
admitted again. So preemption costs two copies over PCIe instead of a prefill."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import torch

from twophase.cache.kv_cache import KVCache
from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy, BlockKey
from twophase.memory import num_blocks_that_fit

# Share of the free host memory when no number of blocks is given: other processes need memory too.
DEFAULT_HOST_MEMORY_FRACTION = 0.25


class HostBlocks(NamedTuple):
    """Blocks in host memory, numbered from 0, for the blocks of one K/V cache. Moves: from block, to block.

    Attributes:
        save: Copies blocks of the cache to host blocks.
        restore: Copies host blocks to blocks of the cache.
    """

    num_blocks: int
    save: Callable[[Sequence[BlockCopy]], None]
    restore: Callable[[Sequence[BlockCopy]], None]


@final
class HostMemoryTier:
    """A `KVTier` of `num_blocks` blocks; the least recently used block is evicted first.

    Args:
        num_blocks: None: as many as the pool has, in at most a quarter of the free host memory. The memory is pinned
            for a CUDA device, so that moves need no staging copy; other processes cannot use it.

    Raises:
        ConfigError: `num_blocks` is below 1, or, from `attach`, the memory is not there.
    """

    def __init__(self, num_blocks: int | None = None) -> None:
        if num_blocks is not None and num_blocks < 1:
            raise ConfigError(f"A tier in host memory needs at least 1 block, got num_blocks={num_blocks}.")
        self.num_blocks = num_blocks
        self._blocks: HostBlocks | None = None
        self._place_of: OrderedDict[BlockKey, int] = OrderedDict()  # first = given up next
        self._free = list(range(num_blocks or 0))

    def attach(self, runner: Any) -> None:
        if self._blocks is not None:
            raise ConfigError("this tier holds the blocks of another engine; make one for each.")
        if hasattr(runner, "host_blocks"):  # several ranks, each with a part of every block
            self._blocks = runner.host_blocks(self.num_blocks)
        else:
            self._blocks = pinned_blocks(runner.kv_cache, self.num_blocks)
        self.num_blocks = self._blocks.num_blocks
        self._free = list(range(self.num_blocks))

    def match(self, keys: Sequence[BlockKey]) -> int:
        num_held = next((i for i, key in enumerate(keys) if key not in self._place_of), len(keys))
        for key in reversed(keys[:num_held]):  # about to be used; without its first block a prefix is useless
            self._place_of.move_to_end(key)
        return num_held

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        num_held = self.match(keys)
        moves = [BlockCopy(self._place_of[key], block_ids[i]) for i, key in enumerate(keys[:num_held])]
        if moves and self._blocks is not None:
            self._blocks.restore(moves)
        return num_held

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        assert self.num_blocks is not None, "attach it, or say how many blocks it has"
        new: dict[BlockKey, int] = {}
        for key, block_id in zip(keys, block_ids, strict=True):
            if key in self._place_of:
                self._place_of.move_to_end(key)
            else:
                new[key] = block_id
        new = dict(list(new.items())[-self.num_blocks :])
        while len(self._free) < len(new):
            self._free.append(self._place_of.popitem(last=False)[1])
        places = self._free[: len(new)]
        if new and self._blocks is not None:
            self._blocks.save(list(map(BlockCopy, new.values(), places)))
        del self._free[: len(new)]  # after the move: if it had raised, these places would be empty
        self._place_of |= zip(new, places, strict=True)
        return len(new)


def pinned_blocks(kv_cache: KVCache, num_blocks: int | None) -> HostBlocks:
    """Host blocks for a cache in this process. On CUDA moves are queued; later work on the same stream waits."""
    num_blocks = num_blocks or default_num_blocks(kv_cache.spec.bytes_per_block, kv_cache.num_blocks)
    is_on_gpu = kv_cache.device.type == "cuda"
    host = KVCache(kv_cache.spec, num_blocks, torch.device("cpu"), pin_memory=is_on_gpu)
    return HostBlocks(num_blocks, partial(_move, kv_cache, host), partial(_move, host, kv_cache))


@torch.inference_mode()
def _move(source: KVCache, target: KVCache, moves: Sequence[BlockCopy]) -> None:
    for pages, copies in zip(source.storage, target.storage, strict=True):
        for from_block, to_block in moves:
            copies[:, to_block].copy_(pages[:, from_block], non_blocking=True)


def default_num_blocks(bytes_per_block: int, num_blocks: int) -> int:
    """Blocks in host memory for a pool of `num_blocks`: as many, in at most a quarter of the free host memory. Raises
    ConfigError if not even one fits."""
    return min(num_blocks, num_blocks_that_fit(bytes_per_block, torch.device("cpu"), DEFAULT_HOST_MEMORY_FRACTION))
