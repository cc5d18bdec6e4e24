"""Blocks in host memory: where preempted sequences keep their K/V, to be fetched back instead of recomputed."""

from collections.abc import Sequence
from typing import final

import torch

from twophase.cache.kv_cache import KVCache
from twophase.core.plan import BlockSwap


@final
class SwapSpace:
    """`num_blocks` blocks of host memory for one cache. Pinned for a CUDA device, so that moves need no staging copy.

    Args:
        kv_cache: Whose blocks are moved.
        num_blocks: At least 1.

    Raises:
        ConfigError: `num_blocks` is below 1, or the memory is not there.
    """

    def __init__(self, kv_cache: KVCache, num_blocks: int) -> None:
        self._device = kv_cache
        self._host = KVCache(kv_cache.spec, num_blocks, torch.device("cpu"), pin_memory=kv_cache.device.type == "cuda")

    def save(self, moves: Sequence[BlockSwap]) -> None:
        """Copy device blocks to the host. On CUDA this is queued; what follows on the same stream waits for it."""
        for source, target in zip(self._device.storage, self._host.storage, strict=True):
            for device_block, host_block in moves:
                target[:, host_block].copy_(source[:, device_block], non_blocking=True)

    def restore(self, moves: Sequence[BlockSwap]) -> None:
        """Copy blocks back from the host; queued likewise."""
        for target, source in zip(self._device.storage, self._host.storage, strict=True):
            for device_block, host_block in moves:
                target[:, device_block].copy_(source[:, host_block], non_blocking=True)
