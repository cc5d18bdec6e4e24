"""Pages of one layer as bytes, out of one cache and into another.

They hold whole blocks, whatever is in them: K of all blocks, V of all blocks, and, quantised, the scales of K and of V.
So a block arrives bit for bit as it was sent, and may have another number there.
"""

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from twophase.cache.kv_cache import KVCache


@torch.inference_mode()
def pack_layer(kv_cache: KVCache, layer: int, block_ids: Sequence[int]) -> list[UInt8[Tensor, "n ..."]]:
    """Copy a layer's blocks out of each tensor of the cache, on the cache's device."""
    index = torch.tensor(block_ids, device=kv_cache.device)
    return [pool[layer].index_select(0, index).view(torch.uint8) for pool in kv_cache.storage]


@torch.inference_mode()
def unpack_layer(
    kv_cache: KVCache, layer: int, parts: Sequence[UInt8[Tensor, "n ..."]], block_ids: Sequence[int | None]
) -> None:
    """Write a layer's blocks, in host memory, into these blocks of a cache; blocks that go to None are left out."""
    rows = [row for row, block_id in enumerate(block_ids) if block_id is not None]
    targets = torch.tensor([block_ids[row] for row in rows], dtype=torch.int64, device=kv_cache.device)
    for pool, part in zip(kv_cache.storage, parts, strict=True):
        part = part if len(rows) == len(block_ids) else part[rows]
        pool[layer].index_copy_(0, targets, part.view(pool.dtype).to(kv_cache.device, non_blocking=True))
