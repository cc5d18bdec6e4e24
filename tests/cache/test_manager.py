"""Options, statistics and the table of the cache's bookkeeping. The invariants have a file of their own."""

import subprocess
import sys

import pytest

from tests.cache.shadow import snapshot
from tests.cache.test_invariants import computed, num_hit_tokens
from twophase.cache.block_pool import BlockPool
from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase.core.errors import CacheStateError, ConfigError, OutOfBlocksError


def test_the_pool_refuses_to_be_empty():
    with pytest.raises(ConfigError, match="num_blocks=0"):
        BlockPool(0)


def test_a_table_cannot_shrink(new_cache):
    cache = new_cache(4, 2)
    table = computed(cache, [1, 2, 3])
    for call in (cache.grow, cache.num_blocks_needed):
        with pytest.raises(CacheStateError, match="has 3 tokens, asked for 2"):
            call(table, 2)


def test_more_tokens_than_ids_cannot_be_published(new_cache):
    cache = new_cache(4, 2)
    table = cache.open([1, 2, 3])
    cache.grow(table, 4)
    with pytest.raises(CacheStateError, match="4 have a slot, 3 an id"):
        cache.publish(table, [1, 2, 3], 4)
    cache.publish(table, [1, 2, 3], 3)
    assert num_hit_tokens(cache, [1, 2, 3]) == 2


def test_a_retried_request_counts_once(new_cache):
    cache = new_cache(4, 2)
    assert cache.stats().num_hit_tokens == 0
    cache.close(computed(cache, [1, 2, 3, 4]))
    cache.close(cache.open([1, 2, 3, 4, 5]))  # there was no room, so it never grew: not counted
    table = cache.open([1, 2, 3, 4, 5])
    cache.grow(table, 5)
    cache.grow(table, 6)
    cache.grow(table, 7)
    cache.close(table)
    resumed = cache.open([1, 2, 3, 4, 5, 6, 7], count_in_stats=False)
    cache.grow(resumed, 7)
    stats = cache.stats()
    assert (stats.num_queries, stats.num_queried_tokens, stats.num_hit_tokens) == (2, 9, 4)


def test_only_contents_that_could_be_found_count_as_evicted(new_cache):
    cache = new_cache(4, 2)
    cache.close(computed(cache, [1, 2, 3, 4]))  # two blocks stay findable, two are blank
    table = computed(cache, [5, 6, 7, 8])
    assert cache.stats().num_evicted == 0, "blank blocks hold nothing to evict"
    with pytest.raises(OutOfBlocksError):
        cache.grow(table, 10)
    assert cache.stats().num_evicted == 0, "a refusal evicts nothing"
    cache.grow(table, 5)
    assert (cache.stats().num_evicted, cache.stats().num_cached) == (1, 1)
    cache.close(table)
    cache.reset_prefix_cache()
    assert cache.stats().num_evicted == 1, "a reset makes no room for others"


def test_digests_are_the_same_in_every_process():
    token_bytes = tokens_to_bytes([1, 2, 3])
    code = (
        "from twophase.cache.prefix_cache import *;"
        "print(block_digest(salt_digest('s'), tokens_to_bytes([1, 2, 3])).hex())"
    )
    digest = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert digest == block_digest(salt_digest("s"), token_bytes).hex()
    assert digest != block_digest(salt_digest(""), token_bytes).hex()


def test_truncate_refuses_what_others_may_read(new_cache):
    cache = new_cache(5, 4)
    token_ids = list(range(6))
    table = cache.open(token_ids)
    cache.grow(table, 6)
    fork = cache.fork(table)
    for cut, words in (
        (5, "shared or published"),
        (4, "shared or published"),
        (7, "can't be cut"),
        (-1, "can't be cut"),
    ):
        before = snapshot(cache)
        with pytest.raises(CacheStateError, match=words):
            cache.truncate(table, cut)
        assert snapshot(cache) == before
    cache.close(fork)
    cache.publish(table, token_ids, 6)
    cache.truncate(table, 4)
    with pytest.raises(CacheStateError, match="shared or published"):
        cache.truncate(table, 3)
    cache.close(table)
    with pytest.raises(CacheStateError, match="not open"):
        cache.truncate(table, 0)
