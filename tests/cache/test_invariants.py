"""What the cache must never get wrong, as far as random histories (test_histories.py) do not show it: which hits are found,
which blocks go first, what is refused and how. Each test takes the class to build, so that mutants run them too."""

import sys
from unittest.mock import patch

import pytest

from tests.cache.histories import History, Live
from tests.cache.integrity import check_pool
from tests.cache.shadow import snapshot
from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.errors import CacheStateError


def computed(cache: CacheManager, token_ids: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens all have been written and published."""
    table = cache.open(token_ids, salt)
    cache.grow(table, len(token_ids))
    cache.publish(table, token_ids, len(token_ids))
    return table


def num_hit_tokens(cache: CacheManager, token_ids: list[int], salt: str = "") -> int:
    table = cache.open(token_ids, salt)
    num_tokens = table.num_cached_tokens
    cache.close(table)
    return num_tokens


def colliding(cache: CacheManager, name: str, constant: bytes):
    """Make a digest function of the cache's own prefix module useless: everything collides."""
    module = sys.modules[type(cache._prefixes).__module__]
    return patch.object(module, name, lambda *args: constant)


def test_invariant_01_a_hit_verifies_what_precedes(new_cache):
    cache = new_cache(8, 2)
    module = sys.modules[type(cache._prefixes).__module__]
    with patch.object(module, "block_digest", lambda parent_digest, token_bytes: token_bytes):
        cache.close(computed(cache, [1, 2, 7, 7]))
        cache.close(computed(cache, [3, 4]))
        assert num_hit_tokens(cache, [3, 4, 7, 7, 0]) == 2, "block [7, 7] is known, but after [1, 2]"
        assert num_hit_tokens(cache, [1, 2, 7, 7, 0]) == 4


def test_invariant_01_a_hit_verifies_the_salt(new_cache):
    cache = new_cache(8, 2)
    with colliding(cache, "salt_digest", b"x"):
        cache.close(computed(cache, [1, 2], salt="a"))
        assert num_hit_tokens(cache, [1, 2, 0], salt="b") == 0
        assert num_hit_tokens(cache, [1, 2, 0], salt="a") == 2


def test_invariant_01_histories_stay_clean_when_every_digest_collides_in_one_of_four(new_cache):
    cache = new_cache(16, 1)
    module = sys.modules[type(cache._prefixes).__module__]
    history = History(lambda *args: cache, 16, 1)
    with patch.object(module, "block_digest", lambda parent, tokens: bytes([sum(parent + tokens) % 4])):
        for prompt in ([1, 2, 3], [2, 1, 3], [3, 1, 2], [1, 2, 3, 4], [5, 6, 7], [1, 2, 7], [2, 1, 3, 4]):
            sequence = Live(prompt, "")
            history.start(sequence)
            assert history.step(sequence, len(prompt))
            history.check()
            history.close(sequence)
        history.finish()


def test_invariant_02_blank_blocks_go_first_then_hashed_ones_tail_first_least_recent_first(new_cache):
    cache = new_cache(7, 2)
    first = computed(cache, [1, 1, 2, 2, 3])  # blocks 0, 1 hashed, 2 partial
    second = computed(cache, [4, 4, 5, 5])  # blocks 3, 4 hashed; 5, 6 never used
    assert (first.block_ids, second.block_ids) == ([0, 1, 2], [3, 4])
    cache.close(second)
    cache.close(first)
    cache.close(cache.open([4, 4, 0]))  # block 3 is used again: now the most recent
    other = cache.open([9] * 14)
    cache.grow(other, 14)
    assert set(other.block_ids[:3]) == {2, 5, 6}, "blank ones first"
    assert other.block_ids[3:] == [4, 1, 0, 3]


def test_invariant_11_a_foreign_table_is_refused(new_cache):
    cache, other = new_cache(8, 4), new_cache(8, 4)
    foreign = computed(other, [1, 2, 3, 4, 5])
    own = computed(cache, [1, 2, 3, 4, 5])
    before, other_before = snapshot(cache), snapshot(other)
    for forbidden in (
        lambda: cache.close(foreign),
        lambda: cache.fork(foreign),
        lambda: cache.grow(foreign, 6),
        lambda: cache.grow(foreign, 16),
        lambda: cache.publish(foreign, list(range(8)), 8),
    ):
        with pytest.raises(CacheStateError, match="another cache"):
            forbidden()
        assert snapshot(cache) == before
        assert snapshot(other) == other_before
    cache.close(own)


def test_invariant_11_the_pool_refuses_double_and_foreign_frees(new_cache):
    pool = new_cache(3, 2)._pool
    (block_id,) = pool.allocate(1)
    pool.release(block_id, is_cached=False)
    for forbidden, message in (
        (lambda: pool.release(block_id, is_cached=False), "free already"),
        (lambda: pool.release(block_id, is_cached=True), "free already"),
        (lambda: pool.release(3, is_cached=False), "not in this pool"),
        (lambda: pool.release(-1, is_cached=False), "not in this pool"),
        (lambda: pool.acquire(-1), "not in this pool"),
        (lambda: pool.acquire(block_id), "blank"),
    ):
        before = (list(pool.ref_counts), list(pool._blank), list(pool._cached))
        with pytest.raises(CacheStateError, match=message):
            forbidden()
        assert (list(pool.ref_counts), list(pool._blank), list(pool._cached)) == before
    check_pool(pool)
