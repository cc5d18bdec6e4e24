"""Sliding windows in the cache: which blocks stay, which go, and what a hit then takes. Run on mutants as well."""

import pytest

from tests.cache.shadow import is_visible, keys_of
from tests.cache.test_invariants import computed
from twophase.core.errors import ConfigError
from twophase_features.windows.sliding_window import SlidingWindow


def check_arithmetic(window_class: type[SlidingWindow]) -> None:
    """Against the definition of what a query sees, position by position."""
    for width, num_sinks, size in [(w, s, b) for w in (1, 2, 3, 4, 5, 9) for s in (0, 1, 4, 5) for b in (1, 2, 4)]:
        window, most = window_class(width, num_sinks), 0
        for n in range(40):
            freed = window.freed_blocks(n, size)
            for index in range(-(-n // size)):
                positions = range(index * size, (index + 1) * size)  # those from n on are still to be written
                is_seen = any(is_visible(p, max(p, n), window) for p in positions)
                assert (index in freed) != is_seen, f"{window}, {n} tokens in blocks of {size}: block {index}"
            most = max(most, -(-(n + 1) // size) - len(freed))  # while token n is computed
        assert most == window.max_blocks(size), f"{window} in blocks of {size} held {most}"


def test_what_is_kept_is_what_is_seen():
    check_arithmetic(SlidingWindow)
    assert SlidingWindow(6, 2).freed_blocks(13, 4) == range(1, 2), "the docstring's example"
    assert SlidingWindow(6).freed_blocks(5, 4) == range(0, 0)


@pytest.mark.parametrize(("args", "message"), [((0,), "at least 1 key"), ((-3, 1), "at least 1"), ((4, -1), "got -1")])
def test_windows_that_cannot_be(args, message):
    with pytest.raises(ConfigError, match=message):
        SlidingWindow(*args)


def test_a_hit_that_lacks_a_sink_or_a_key_of_the_window_is_none(new_cache):
    token_ids = list(range(20))
    for lacking, num_cached_tokens in (((1, 2, 7), 20), ((0,), 0), ((9,), 18), ((8,), 16), ((7, 8, 9), 14)):
        cache = new_cache(10, 2, window=SlidingWindow(40))
        cache._prefixes.window = SlidingWindow(4, 1)
        block_ids = list(computed(cache, token_ids).block_ids)
        for index in lacking:
            cache._prefixes.forget(block_ids[index])
        hit, _ = cache._prefixes.lookup(keys_of(cache._prefixes, token_ids), "")
        assert 2 * len(hit) == num_cached_tokens, f"without blocks {lacking}"


def test_what_is_to_come_is_bounded_whatever_the_length(new_cache):
    window = SlidingWindow(6, 2)
    cache = new_cache(40, 4, window=window)
    table = cache.open([1] * 900)
    assert cache.num_blocks_needed(table, 900) == window.max_blocks(4) == 4
    assert cache.num_blocks_needed(table, 5) == 2
    cache.grow(table, 9)
    assert cache.num_blocks_needed(table, 900) == 1
    fork = cache.fork(table)
    assert cache.num_blocks_needed(table, 900) == 4, "blocks that others hold too do not come back"
    assert cache.room(table, 900, 4) == 4 * (3 + 4 - 1), "one is for the copy of the shared last block"
    cache.close(fork)
    cache.grow(table, 40)
    assert cache.num_blocks_needed(table, 900) == 0, "more than needed for small chunks"
    plain = new_cache(300, 4)
    assert plain.num_blocks_needed(plain.open([1] * 900), 900) == 225


def test_the_most_that_a_request_comes_to_hold(new_cache):
    """By hand, in blocks of 4: 40 tokens are 10 blocks, windows of 6 lie in 3 at most, 2 sinks in one of the 4."""
    groups = {"window": SlidingWindow(6), "sees_all": (True, False, False)}
    cache = new_cache(1, 4, **groups)
    assert cache.num_blocks_at_most(1) == 3, "a block of each group"
    assert cache.num_blocks_at_most(40) == cache.num_blocks_at_most(40, 30) == 10 + 2 * 3
    assert cache.num_blocks_at_most(40, 30, 2) == (7 + 2 * 3) + 2 * 2 * 3, "7 full blocks are shared, no window is"
    assert cache.num_blocks_at_most(8, 4, 3) == 3 * (1 + 3 * 1), "shorter than a window: what is shared is shared"
    assert new_cache(1, 4, window=SlidingWindow(6, 2)).num_blocks_at_most(40, 30, 2) == 1 + 2 * 3, "the sink is shared"
    assert new_cache(1, 4, window=SlidingWindow(6, 2)).num_blocks_at_most(40, 3, 2) == 2 * 4
    assert new_cache(1, 4).num_blocks_at_most(10, 6, 2) == 5, "the docstring's example"
