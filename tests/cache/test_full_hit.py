"""Both policies for tokens that are cached to the last. (The histories and the mutants run both as well.)"""

import pytest

from tests.cache.shadow import snapshot
from tests.cache.test_invariants import computed, new_cache  # noqa: F401  (a fixture)
from twophase.core.errors import ConfigError, OutOfBlocksError
from twophase.core.plan import BlockCopy

PROMPT = list(range(8))


def test_the_last_block_or_the_last_token_is_recomputed(new_cache):  # noqa: F811
    for full_hit, num_cached, num_blocks in (("recompute_block", 4, 1), ("recompute_token", 7, 2)):
        cache = new_cache(8, 4, full_hit=full_hit)
        cache.close(computed(cache, PROMPT))
        table = cache.open(PROMPT)
        assert (table.num_cached_tokens, len(table.block_ids)) == (num_cached, num_blocks)
        assert cache.grow(table, 8) == ()
        stats = cache.stats()
        assert (stats.num_queried_tokens, stats.num_hit_tokens, stats.num_slots_in_use) == (16, num_cached, 8)


@pytest.mark.parametrize(("num_tokens", "num_cached"), [(1, 0), (3, 0), (4, 3), (5, 4), (7, 4), (8, 7), (9, 8)])
def test_something_is_always_computed(new_cache, num_tokens, num_cached):  # noqa: F811
    cache = new_cache(8, 4, full_hit="recompute_token")
    cache.close(computed(cache, list(range(12))))
    assert cache.open(list(range(num_tokens))).num_cached_tokens == num_cached


def test_a_tail_that_others_hold_is_copied_and_found_in_both_places(new_cache):  # noqa: F811
    cache = new_cache(8, 4, full_hit="recompute_token")
    first = computed(cache, PROMPT)
    second = cache.open(PROMPT)
    assert second.block_ids == first.block_ids == [0, 1]
    assert cache.num_blocks_needed(second, 8) == 1
    assert cache.grow(second, 8) == (BlockCopy(source=1, target=2),)
    assert (first.block_ids, second.block_ids) == ([0, 1], [0, 2])
    assert cache.grow(second, 8) == (), "its own by now"
    cache.publish(second, PROMPT, 8)
    cache.check_integrity()
    cache.close(first)
    filler = cache.open([99] * 24)
    cache.grow(filler, 24)  # evicts block 1
    third = cache.open([*PROMPT, 8])
    assert third.block_ids == [0, 2]
    cache.check_integrity()


def test_a_tail_of_nobody_else_is_written_in_place(new_cache):  # noqa: F811
    """Which is why a prompt that fills the pool can be served: a copy would have no room."""
    cache = new_cache(2, 4, full_hit="recompute_token")
    cache.close(computed(cache, PROMPT))
    table = cache.open(PROMPT)
    assert cache.num_blocks_needed(table, 8) == 0
    assert cache.grow(table, 8) == ()
    other = cache.open(PROMPT)
    before = snapshot(cache)
    with pytest.raises(OutOfBlocksError):
        cache.grow(other, 8)
    assert snapshot(cache) == before


def test_a_tail_that_was_written_is_shared_like_any_full_block(new_cache):  # noqa: F811
    cache = new_cache(8, 4, full_hit="recompute_token")
    cache.close(computed(cache, PROMPT))
    first = computed(cache, PROMPT)
    second = cache.fork(first)
    assert cache.num_blocks_needed(second, 9) == 1
    assert cache.grow(first, 9) == cache.grow(second, 9) == ()


def test_an_unknown_policy_is_refused(new_cache):  # noqa: F811
    with pytest.raises(ConfigError, match="recompute_block, recompute_token; got 'skip'"):
        new_cache(8, 4, full_hit="skip")
