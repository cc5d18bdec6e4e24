"""Sliding windows in the cache: which blocks stay, which go, and what a hit then takes. Run on mutants as well."""

import pytest

from tests.cache.histories import NewCache
from tests.cache.integrity import check_integrity
from tests.cache.plain import plain_manager_class, typed_cache
from tests.cache.shadow import is_visible, keys_of, snapshot
from tests.cache.test_invariants import computed
from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.errors import CacheStateError, ConfigError, OutOfBlocksError
from twophase_features.windows.sliding_window import FREED, SlidingWindow


@pytest.fixture(params=["typed", "plain"])
def new_cache(request) -> NewCache:
    return typed_cache if request.param == "typed" else plain_manager_class()


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
            if freed:
                assert (
                    window.num_tokens_to_free(freed.stop - 1, size) <= n < window.num_tokens_to_free(freed.stop, size)
                )
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


def decoded(cache: CacheManager, table: BlockTable, token_ids: list[int], end: int) -> list[int]:
    """Grow token by token to `end` tokens; how many blocks were in use after each."""
    in_use = []
    for n in range(table.num_tokens + 1, end + 1):
        cache.grow(table, n)
        cache.publish(table, token_ids, n)
        in_use.append(cache.stats().num_in_use)
    return in_use


def test_a_thousand_tokens_in_a_handful_of_blocks(new_cache):
    window = SlidingWindow(10, 3)
    cache = new_cache(window.max_blocks(4), 4, window=window)
    token_ids = [7 * i % 13 for i in range(1000)]
    table = cache.open(token_ids)
    in_use = decoded(cache, table, token_ids, 1000)
    assert max(in_use) <= window.max_blocks(4) == 5
    assert len(table.block_ids) == 250
    kept = [index for index, block_id in enumerate(table.block_ids) if block_id != FREED]
    assert kept == [0, 247, 248, 249]
    check_integrity(cache)
    cache.close(table)
    assert (cache.stats().num_in_use, cache.num_free_blocks) == (0, 5)


def test_nothing_is_freed_before_it_was_confirmed(new_cache):
    cache = new_cache(8, 2, window=SlidingWindow(1))
    table = cache.open([1] * 9)
    cache.grow(table, 9)
    assert FREED not in table.block_ids
    before = snapshot(cache)
    with pytest.raises(CacheStateError):
        cache.publish(table, [1] * 9, 10)
    assert snapshot(cache) == before
    cache.publish(table, [1] * 9, 4)
    assert [block_id == FREED for block_id in table.block_ids] == [True, True, False, False, False]


def test_a_hit_takes_what_the_next_query_sees_and_no_more(new_cache):
    cache = new_cache(16, 2, window=SlidingWindow(4, 1))
    token_ids = list(range(20))
    cache.close(computed(cache, token_ids))
    table = cache.open([*token_ids, 99])
    assert table.num_cached_tokens == 20
    assert [index for index, block_id in enumerate(table.block_ids) if block_id != FREED] == [0, 8, 9]
    assert cache.stats().num_in_use == 3
    check_integrity(cache)


def test_a_hit_needs_no_block_that_is_not_read(new_cache):
    """The middle is evicted first, for it left the window first; the end and the sinks still make a hit."""
    window, token_ids = SlidingWindow(4, 1), list(range(20))
    cache = new_cache(10, 2, window=window)
    cache.close(computed(cache, token_ids))
    other = cache.open([50] * 14)
    cache.grow(other, 14)  # takes 7 of the 10: the 7 that left the window first
    table = cache.open([*token_ids, 99])
    assert table.num_cached_tokens == 20
    check_integrity(cache)
    cache.grow(table, 21 - 1)
    cache.close(other)
    cache.close(table)


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


def test_the_window_moves_on_in_a_fork_of_its_own(new_cache):
    cache = new_cache(12, 2, window=SlidingWindow(4, 2))
    token_ids = list(range(30))
    first = computed(cache, token_ids[:7])
    second = cache.fork(first)
    cache.grow(first, 20)
    cache.publish(first, token_ids, 20)
    assert FREED in first.block_ids
    shared = [block_id for block_id in second.block_ids if block_id != FREED]
    assert second.block_ids[0] == first.block_ids[0], "sinks stay shared"
    assert cache.stats().num_in_use == len({*shared, *first.block_ids} - {FREED})
    check_integrity(cache)
    third = cache.fork(first)
    assert third.block_ids == first.block_ids
    cache.close(first)
    cache.grow(third, 21)
    cache.publish(third, token_ids, 21)
    check_integrity(cache)
    for table in (second, third):
        cache.close(table)
    assert cache.num_free_blocks == 12


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


def test_a_reset_is_refused_while_a_table_is_open_even_if_it_holds_no_block(new_cache):
    cache = new_cache(4, 2, window=SlidingWindow(1))
    table = computed(cache, [1, 2, 3, 4])
    assert cache.stats().num_in_use == 0
    with pytest.raises(CacheStateError):
        cache.reset_prefix_cache()
    cache.close(table)
    cache.reset_prefix_cache()
    check_integrity(cache)


def reserved(cache: CacheManager, token_ids: list[int]) -> BlockTable:
    table = cache.open(token_ids)
    cache.reserve(table, len(token_ids))
    return table


def test_what_is_reserved_no_other_table_takes(new_cache):
    """A window of 6 with 2 sinks lies in 4 blocks at most; the short prompt reserves 2, and 4 are for any table."""
    cache = new_cache(10, 4, False, window=SlidingWindow(6, 2))
    long, short, other = reserved(cache, [1] * 900), reserved(cache, [2] * 7), cache.open([3] * 40)
    assert (cache.stats().num_in_use, cache.num_free_blocks) == (0, 10 - 4 - 2)
    assert cache.room(other, 40, cache.num_free_blocks) == 16
    assert cache.room(long, 900, 0) == 16, "its own reservation"
    assert cache.room(long, 900, 4) == 32, "and free blocks beside it"
    cache.grow(other, 4)
    late = cache.open([4] * 40)
    before = snapshot(cache)
    for refused in (lambda: cache.grow(other, 17), lambda: cache.reserve(late, 40)):
        with pytest.raises(OutOfBlocksError, match="3 of 10 free and not reserved"):
            refused()
        assert snapshot(cache) == before
    cache.grow(short, 7)
    check_integrity(cache)


def test_a_block_that_leaves_the_window_goes_back_into_the_reservation(new_cache):
    """Until the prompt's end is in sight; what a table holds no more of than it needs, others may have."""
    window, token_ids = SlidingWindow(6), [1] * 40
    cache = new_cache(8, 4, False, window=window)
    table = reserved(cache, token_ids)
    assert (window.max_blocks(4), cache.num_free_blocks) == (3, 5)
    for end in (12, *range(16, 44, 4)):
        assert cache.room(table, 40, 0) == end
        cache.grow(table, end)
        assert cache.num_free_blocks == 5
        cache.publish(table, token_ids, end)
        assert (cache.stats().num_in_use, cache.num_free_blocks) == (2, 6 if end == 40 else 5), end
        check_integrity(cache)
    cache.close(table)
    assert cache.num_free_blocks == 8


def test_a_hit_of_what_a_prefill_counts_on_is_paid_by_the_newcomer(new_cache):
    """b shares two blocks that will not come back to a when they leave a's window: a's reservation grows by two."""
    token_ids = list(range(40))
    cache = new_cache(8, 4, window=SlidingWindow(6))
    first = reserved(cache, token_ids)
    cache.grow(first, 12)
    cache.publish(first, token_ids, 12)
    assert (cache.stats().num_in_use, cache.num_free_blocks) == (2, 5)
    second = cache.open(token_ids[:13])
    assert second.num_cached_tokens == 12
    assert (cache.stats().num_in_use, cache.num_free_blocks) == (2, 3)
    cache.close(second)
    assert cache.num_free_blocks == 5
    other = cache.open([99] * 20)
    cache.grow(other, 16)
    second = cache.open(token_ids[:13])
    assert cache.num_free_blocks == -1, "there are too few: the newcomer must go"
    cache.close(second)
    assert cache.num_free_blocks == 1


def test_closing_gives_a_reservation_back_and_so_does_a_fork(new_cache):
    cache = new_cache(8, 4, window=SlidingWindow(6))
    table = reserved(cache, [1] * 40)
    cache.close(table)
    assert cache.num_free_blocks == 8
    table = reserved(cache, [1] * 40)
    cache.grow(table, 4)
    fork = cache.fork(table)
    assert cache.num_free_blocks == 7
    check_integrity(cache)
    for each in (table, fork):
        cache.close(each)


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
