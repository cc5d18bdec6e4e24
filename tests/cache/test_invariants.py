"""What the cache must never get wrong, as far as random histories (test_histories.py) do not show it: which hits are found,
which blocks go first, what is refused and how. Each test takes the class to build, so that mutants run them too."""

import sys
from unittest.mock import patch

import pytest

from tests.cache.histories import History, Live
from tests.cache.integrity import check_integrity, check_pool
from tests.cache.shadow import snapshot
from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.core.plan import BlockCopy


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


def test_invariant_01_only_full_blocks_are_found(new_cache):
    cache = new_cache(8, 4)
    cache.close(computed(cache, [1, 2, 3, 4, 5, 6, 7]))
    assert cache.stats().num_cached == 1
    assert num_hit_tokens(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 4


def test_invariant_01_the_same_block_after_other_tokens_is_another_block(new_cache):
    cache = new_cache(8, 2)
    cache.close(computed(cache, [1, 1, 7, 7]))
    assert num_hit_tokens(cache, [2, 2, 7, 7, 0]) == 0
    assert num_hit_tokens(cache, [7, 7, 0]) == 0
    cache.close(computed(cache, [2, 2, 7, 7]))
    assert num_hit_tokens(cache, [1, 1, 7, 7, 0]) == num_hit_tokens(cache, [2, 2, 7, 7, 0]) == 4


def test_invariant_01_salted_chains_never_meet(new_cache):
    cache = new_cache(8, 2)
    cache.close(computed(cache, [1, 2, 3, 4], salt="a"))
    assert num_hit_tokens(cache, [1, 2, 3, 4, 5], salt="b") == num_hit_tokens(cache, [1, 2, 3, 4, 5]) == 0
    cache.close(computed(cache, [1, 2, 3, 4], salt="b"))
    assert num_hit_tokens(cache, [1, 2, 3, 4, 5], salt="a") == num_hit_tokens(cache, [1, 2, 3, 4, 5], salt="b") == 4
    assert cache.stats().num_cached == 4, "the two chains share no block"


def colliding(cache: CacheManager, name: str, constant: bytes):
    """Make a digest function of the cache's own prefix module useless: everything collides."""
    module = sys.modules[type(cache._prefixes).__module__]
    return patch.object(module, name, lambda *args: constant)


def test_invariant_01_a_hit_verifies_the_tokens(new_cache):
    cache = new_cache(8, 2)
    with colliding(cache, "block_digest", b"x"):
        cache.close(computed(cache, [1, 2]))
        assert num_hit_tokens(cache, [3, 4, 0]) == 0
        assert num_hit_tokens(cache, [1, 2, 0]) == 2
        cache.close(computed(cache, [3, 4, 5, 6]))
        assert num_hit_tokens(cache, [3, 4, 5, 6, 0]) == 0, "a colliding block is left out, and what follows it too"
        check_integrity(cache)


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


def test_invariant_02_a_prefix_outlives_what_continues_it(new_cache):
    cache = new_cache(4, 2)
    cache.close(computed(cache, [1, 2, 3, 4, 5, 6, 7, 8]))
    for num_tokens_left in (6, 4, 2, 0):
        table = computed(cache, [9] * (8 - num_tokens_left))
        cache.close(table)
        assert num_hit_tokens(cache, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == num_tokens_left
        check_integrity(cache)


@pytest.mark.parametrize(("num_tokens", "num_cached_tokens"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)])
def test_invariant_04_something_is_always_computed(new_cache, num_tokens, num_cached_tokens):
    cache = new_cache(8, 4)
    cache.close(computed(cache, list(range(12))))
    table = cache.open(list(range(num_tokens)))
    assert table.num_tokens == table.num_cached_tokens == num_cached_tokens
    assert len(table.block_ids) == num_cached_tokens // 4


def test_invariant_05_a_failed_allocation_changes_nothing(new_cache):
    cache = new_cache(4, 2)
    cache.close(computed(cache, [1, 2, 3, 4]))  # two cached blocks that must not be evicted in vain
    table = cache.open([1, 2, 9, 9, 9])
    fork = cache.fork(table)
    cache.grow(fork, 3)
    shared = cache.fork(fork)
    before = snapshot(cache)
    for victim, num_tokens in ((table, 8), (shared, 8), (table, 100)):
        assert cache.num_blocks_needed(victim, num_tokens) > cache.num_free_blocks
        with pytest.raises(OutOfBlocksError, match="free"):
            cache.grow(victim, num_tokens)
        assert snapshot(cache) == before
    cache.grow(table, 6)
    assert num_hit_tokens(cache, [1, 2, 3, 4, 5]) == 2


def test_invariant_07_evicting_one_of_two_identical_blocks_keeps_the_other(new_cache):
    cache = new_cache(2, 2)
    tables = [cache.open([1, 2]) for _ in range(2)]
    for table in tables:
        cache.grow(table, 2)
    for table in tables:
        cache.publish(table, [1, 2], 2)
        cache.close(table)
    other = cache.open([3, 4])
    cache.grow(other, 2)
    assert num_hit_tokens(cache, [1, 2, 0]) == 2
    check_integrity(cache)
    cache.grow(other, 4)
    assert num_hit_tokens(cache, [1, 2, 0]) == 0


def test_invariant_08_a_block_is_found_only_after_it_was_written(new_cache):
    cache = new_cache(8, 2)
    token_ids = [1, 2, 3, 4, 5, 6]
    table = cache.open(token_ids)
    cache.grow(table, 6)
    assert num_hit_tokens(cache, [*token_ids, 0]) == 0
    for num_computed, num_found in ((1, 0), (2, 2), (3, 2), (5, 4), (6, 6)):
        cache.publish(table, token_ids, num_computed)
        assert num_hit_tokens(cache, [*token_ids, 0]) == num_found
    before = snapshot(cache)
    with pytest.raises(CacheStateError, match="8 computed tokens: 6 have a slot"):
        cache.publish(table, [*token_ids, 7, 8], 8)
    assert snapshot(cache) == before


def test_invariant_09_reset_fails_while_blocks_are_in_use(new_cache):
    cache = new_cache(4, 2)
    table = computed(cache, [1, 2, 3])
    before = snapshot(cache)
    with pytest.raises(CacheStateError, match="2 of 4"):
        cache.reset_prefix_cache()
    assert snapshot(cache) == before
    cache.close(table)
    assert cache.stats().num_cached == 1
    cache.reset_prefix_cache()
    assert cache.stats().num_free == 4
    assert num_hit_tokens(cache, [1, 2, 3]) == 0
    cache.close(computed(cache, [1, 2, 3]))
    assert num_hit_tokens(cache, [1, 2, 3]) == 2
    check_integrity(cache)


def test_invariant_10_a_fork_shares_all_blocks_and_copies_at_the_first_write(new_cache):
    cache = new_cache(8, 4)
    first = computed(cache, [1, 2, 3, 4, 5, 6])
    second = cache.fork(first)
    third = cache.fork(second)
    assert second.block_ids == first.block_ids == third.block_ids == [0, 1]
    assert cache.stats().num_in_use == 2
    assert cache.num_blocks_needed(second, 7) == 1
    assert cache.grow(second, 7) == (BlockCopy(source=1, target=2),)
    assert cache.grow(first, 7) == (BlockCopy(source=1, target=3),)
    assert cache.num_blocks_needed(third, 7) == 0
    assert cache.grow(third, 7) == (), "the last owner writes in place"
    assert (second.block_ids, first.block_ids, third.block_ids) == ([0, 2], [0, 3], [0, 1])
    assert cache.grow(second, 8) == (), "its own by now"
    check_integrity(cache)


def test_invariant_10_a_full_shared_block_is_never_copied(new_cache):
    cache = new_cache(8, 4)
    first = computed(cache, [1, 2, 3, 4])
    second = cache.fork(first)
    assert cache.grow(first, 5) == cache.grow(second, 6) == ()
    assert first.block_ids[0] == second.block_ids[0]
    assert first.block_ids[1] != second.block_ids[1]


def test_invariant_11_a_second_close_is_refused(new_cache):
    cache = new_cache(8, 2)
    first = computed(cache, [1, 2, 3])
    fork = cache.fork(first)
    cache.close(first)
    before = snapshot(cache)
    for forbidden in (
        lambda: cache.close(first),
        lambda: cache.fork(first),
        lambda: cache.grow(first, 4),
        lambda: cache.num_blocks_needed(first, 4),
        lambda: cache.publish(first, [1, 2, 3, 4], 4),
    ):
        with pytest.raises(CacheStateError, match="closed already"):
            forbidden()
        assert snapshot(cache) == before
    cache.close(fork)
    assert cache.num_free_blocks == 8


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
