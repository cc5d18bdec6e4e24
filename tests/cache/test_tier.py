"""The allocators and the KV tier: what is offered, what is stored, and what counts as loaded. Run on mutants as well."""

from dataclasses import dataclass, field

from tests.cache.integrity import check_integrity
from tests.cache.test_invariants import computed
from twophase_features.windows.sliding_window import SlidingWindow

MIXED = {"window": SlidingWindow(6), "sees_all": (True, False)}


@dataclass
class Notes:
    """A tier that says it has the first `num_held` keys, loads `num_loaded` of them in all, and notes each call."""

    num_held: int = 0
    num_loaded: int = 10**9
    loads: list = field(default_factory=list)
    stored: dict = field(default_factory=dict)

    def attach(self, runner):
        raise AssertionError("only the scheduler attaches a tier")

    def match(self, keys):
        return min(self.num_held, len(keys))

    def load(self, keys, block_ids):
        assert len(keys) == len(block_ids)
        self.loads.append(len(keys))
        num_loaded = min(len(keys), self.num_loaded)
        self.num_loaded -= num_loaded
        return num_loaded

    def store(self, keys, block_ids):
        self.stored |= dict(zip(block_ids, keys, strict=True))
        return len(keys)


def test_what_is_overwritten_is_stored_under_its_own_key(new_cache):
    cache = new_cache(4, 2)
    cache.tier = tier = Notes()
    old = computed(cache, list(range(8)))
    keys = {block_id: cache._prefixes.key_of(block_id) for block_id in old.block_ids}
    cache.close(old)
    cache.grow(cache.open([9] * 6), 6)
    assert len(tier.stored) == cache.num_offloaded == 3
    assert tier.stored.items() <= keys.items()


def test_a_token_is_loaded_in_every_group_or_not_at_all(new_cache):
    for num_held, num_loaded, num_tokens in ((5, 9, 8), (4, 3, 4), (4, 1, 0), (1, 1, 0)):
        cache = new_cache(20, 4, **MIXED)
        cache.tier = Notes(num_held, num_loaded)
        table = cache.open([1] * 30)
        cache.reserve(table, 30)
        loaded = cache.load(table, [1] * 30)
        assert (table.num_cached_tokens, len(loaded)) == (num_tokens, num_tokens // 2)
        check_integrity(cache)


def test_with_a_window_it_is_loaded_by_what_is_reserved(new_cache):
    """Ten blocks of 4 through a window of 6, which lies in 3 at most: none is taken that was not reserved."""
    cache = new_cache(8, 4, window=SlidingWindow(6))
    cache.tier = tier = Notes(num_held=10)
    token_ids = list(range(41))
    table = cache.open(token_ids)
    cache.reserve(table, 41)
    num_free = cache.num_free_blocks
    assert len(cache.load(table, token_ids)) == 10
    assert tier.loads[0] == 3
    assert max(tier.loads) == 3
    assert (table.num_cached_tokens, table.num_offered_tokens, cache.num_free_blocks) == (40, 0, num_free)
    check_integrity(cache)
