"""Moves blocks between the pool of a `CacheManager` and its KV tier."""

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.plan import BlockKey
from twophase_features.offloading.tier import KVTier

logger = logging.getLogger(__name__)


def offer(cache: CacheManager, table: BlockTable, keys: Sequence[BlockKey]) -> None:
    """Note which blocks after a new table's prefix hit the tier has; `keys` has a key for each block, in order."""
    assert cache.tier is not None
    behind = keys[table.num_tokens // cache.block_size :]
    of_groups = [key.of_group(group) for key in behind for group in range(cache.num_groups)]
    num_places = or_nothing(cache.tier.match, of_groups) // cache.num_groups
    table.offered = of_groups[: num_places * cache.num_groups]
    table.num_offered_tokens = num_places * cache.block_size


def load(cache: CacheManager, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
    """Load the offered blocks, up to a missing one, as many at a time as the table has room for; returns the blocks."""
    assert cache.tier is not None
    loaded: list[int] = []
    while table.num_offered_tokens:
        start = table.num_cached_tokens
        end = cache.room(table, start + table.num_offered_tokens, 0)
        if end > table.num_tokens:
            cache.grow(table, end)
        first, behind = (tokens // cache.block_size * cache.num_groups for tokens in (start, end))
        block_ids, keys = table.block_ids[first:behind], table.offered[: behind - first]
        num_places = or_nothing(cache.tier.load, keys, block_ids) // cache.num_groups if keys else 0
        table.num_cached_tokens += num_places * cache.block_size
        cache.publish(table, token_ids, table.num_cached_tokens)
        loaded += block_ids[: num_places * cache.num_groups]
        table.offered = table.offered[len(keys) :]
        table.num_offered_tokens -= end - start
        if not start < end == table.num_cached_tokens:  # no room, or a block was lost
            table.num_offered_tokens = 0
    return loaded


def store(tier: KVTier, keys: Mapping[int, BlockKey]) -> int:
    """Have the tier copy blocks that are about to be overwritten; returns how many it copied."""
    return or_nothing(tier.store, list(keys.values()), list(keys)) if keys else 0


def or_nothing(call: Callable[..., int], *arguments: Sequence[Any]) -> int:
    """The number of blocks that a tier's call returns; 0, and a warning in the log, if it raises or returns no such
    number: a tier may fail, a request must not."""
    try:
        num_blocks, most = index(call(*arguments)), len(arguments[0])
        if not 0 <= num_blocks <= most:
            raise ValueError(f"a number of blocks in [0, {most}] was expected, got {num_blocks}")
        return num_blocks
    except Exception:
        logger.warning("the KV tier failed in %s: its blocks are computed instead", call.__name__, exc_info=True)
        return 0
