"""The adapter of lab 3's capstone behaves like the engine's cache manager without prefix caching."""

import random

import pytest

from twophase.cache.manager import CacheManager
from twophase.core.errors import CacheStateError, ConfigError, OutOfBlocksError
from twophase_labs.decode.own_cache import OwnCache


class Pool:
    """What exercise 3.2 asks for, as plainly as possible."""

    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, n):
        if n > len(self.free):
            raise OutOfBlocksError("too few")
        return [self.free.pop(0) for _ in range(n)]


class Table:
    """What exercise 3.3 asks for; its `free` empties the list in place, as a learner's may."""

    def __init__(self, pool, block_size):
        self.pool, self.block_size, self.block_ids, self.num_tokens = pool, block_size, [], 0

    def grow(self, num_tokens):
        self.block_ids += self.pool.allocate(max(0, -(-num_tokens // self.block_size) - len(self.block_ids)))
        self.num_tokens = num_tokens

    def free(self):
        self.pool.free += self.block_ids
        self.block_ids.clear()
        self.num_tokens = 0


def make(num_blocks=8, block_size=4):
    pool = Pool(num_blocks)
    return OwnCache(pool, lambda: Table(pool, block_size), block_size)


@pytest.mark.parametrize("seed", range(20))
def test_answers_like_the_engines_own(seed):
    draw = random.Random(seed)
    own, theirs = make(), CacheManager(8, 4, enable_prefix_caching=False)
    tables = []
    for _ in range(200):
        kind = draw.choice(["open", "grow", "grow", "grow", "close"])
        if kind == "open":
            tables.append((own.open([1, 2]), theirs.open([1, 2])))
        elif tables and kind == "close":
            one, other = tables.pop(draw.randrange(len(tables)))
            own.close(one)
            theirs.close(other)
        elif tables:
            one, other = draw.choice(tables)
            num_tokens = other.num_tokens + draw.randrange(0, 7)
            num_needed = own.num_blocks_needed(one, num_tokens)
            assert num_needed == theirs.num_blocks_needed(other, num_tokens)
            if num_needed <= own.num_free_blocks:
                assert own.grow(one, num_tokens) == theirs.grow(other, num_tokens)
            else:
                with pytest.raises(OutOfBlocksError):
                    own.grow(one, num_tokens)
        held = [block for table in own.tables for block in table.block_ids]
        assert len(held) == len(set(held)) == own.num_blocks - own.num_free_blocks, "a block has two owners, or none"
        assert [len(one.block_ids) for one, _ in tables] == [len(other.block_ids) for _, other in tables]
        assert [one.num_tokens for one, _ in tables] == [other.num_tokens for _, other in tables]
        assert own.num_free_blocks == theirs.num_free_blocks
        mine, yours = own.stats(), theirs.stats()
        assert (mine.num_in_use, mine.num_free, mine.num_slots_in_use) == (
            yours.num_in_use,
            yours.num_free,
            yours.num_slots_in_use,
        )
        assert mine.internal_fragmentation == pytest.approx(yours.internal_fragmentation)


def test_refuses_what_it_cannot_do():
    cache = make()
    table = cache.open([1])
    cache.grow(table, 1)
    with pytest.raises(CacheStateError, match="n=1"):
        cache.fork(table)
    cache.close(table)
    with pytest.raises(CacheStateError, match="not open"):
        cache.close(table)
    with pytest.raises(ConfigError):
        make(num_blocks=0)
