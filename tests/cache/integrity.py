"""Whether all books of a cache agree: the pool's, the prefix cache's, the tables'. Slow."""

from collections import Counter

import pytest

from twophase.cache.block_pool import BlockPool
from twophase.cache.manager import CacheManager
from twophase.cache.prefix_cache import PrefixCache
from twophase_features.windows.sliding_window import FREED


def check_integrity(cache: CacheManager) -> None:
    """Raise AssertionError with what is wrong."""
    check_pool(cache._pool)
    check_prefixes(cache._prefixes)
    size, per_place = cache.block_size, getattr(cache, "num_groups", 1)
    owners = Counter(block_id for table in cache._tables for block_id in table.held_blocks)
    for block_id, ref_count in enumerate(cache._pool.ref_counts):
        assert ref_count == owners[block_id], f"block {block_id}: {ref_count} references, {owners[block_id]} owners"
    num_filled: dict[int, int] = {}
    for table in cache._tables:
        num_blocks = per_place * -(-table.num_tokens // size)
        assert len(table.block_ids) == num_blocks, f"{num_blocks} blocks hold the tokens of {table}"
        last = table.block_ids[-per_place:]
        for block_id in table.held_blocks:
            filled = (table.num_tokens - 1) % size + 1 if block_id in last else size
            assert num_filled.setdefault(block_id, filled) == filled, f"owners of block {block_id} disagree"
    counted, num_slots = cache.stats().num_slots_in_use, sum(num_filled.values())
    assert counted == num_slots, f"{counted} slots counted, {num_slots} in use"
    num_in_blocks = cache.stats().num_in_use * size
    assert cache.stats().internal_fragmentation * num_in_blocks == pytest.approx(num_in_blocks - num_slots)
    for block_id in cache._pool._cached:
        assert block_id in cache._prefixes, f"block {block_id} is kept, but no lookup can find it"
    if hasattr(cache, "window"):
        check_windows(cache)


def check_pool(pool: BlockPool) -> None:
    """Each block is in exactly one state."""
    blank, cached = set(pool._blank), set(pool._cached)
    in_use = {block_id for block_id, count in enumerate(pool.ref_counts) if count > 0}
    assert len(blank) == len(pool._blank), f"blank list holds a block twice: {pool._blank}"
    assert not blank & cached, f"both blank and cached: {blank & cached}"
    assert not in_use & (blank | cached), f"in use and free at once: {in_use & (blank | cached)}"
    lost = set(range(pool.num_blocks)) - in_use - blank - cached
    assert not lost, f"neither in use nor free: {lost}"
    assert min(pool.ref_counts) >= 0, f"negative reference count in {pool.ref_counts}"


def check_prefixes(prefixes: PrefixCache) -> None:
    """Both maps agree, and every prefix's parent is findable."""
    listed = {block_id: prefix for prefix in prefixes._by_digest.values() for block_id in prefix.holders}
    assert listed == prefixes._of_block, f"blocks by digest {listed} and by id {prefixes._of_block} differ"
    for digest, prefix in prefixes._by_digest.items():
        assert prefix.digest == digest, f"prefix filed under a foreign digest: {prefix}"
        parent = prefix.parent
        assert parent is None or prefixes._by_digest.get(parent.digest) is parent, f"parent forgotten: {prefix}"


def check_windows(cache) -> None:
    """Where blocks left the window, and nowhere else, tables have none."""
    sliding = [group for group, sees_all in enumerate(cache.sees_all) if not sees_all]
    first = cache.window.freed_blocks(0, cache.block_size).start
    for table in cache._tables:
        freed = [index for index, block_id in enumerate(table.block_ids) if block_id == FREED]
        expected = [place * cache.num_groups + group for place in range(first, table.first_kept) for group in sliding]
        assert freed == expected, f"freed {freed} of {table}"
