"""The door `KVAllocator`: its abstract methods are enough for a scheduler, and the others are right without them."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.scheduling.harness import make_request, next_token
from twophase.cache.allocator import CacheStats, KVAllocator, KVTable
from twophase.cache.manager import CacheManager
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.core.plan import SampledToken
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler


@dataclass(eq=False)
class PlainTable(KVTable):
    block_ids: list = field(default_factory=list)
    num_tokens: int = 0


class PlainAllocator(KVAllocator):
    """Nothing but what a subclass must write."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))

    @property
    def num_free_blocks(self):
        return len(self.free)

    def open(self, token_ids, salt="", count_in_stats=True, keys=None):
        return PlainTable()

    def grow(self, table, num_tokens):
        if self.num_blocks_needed(table, num_tokens) > len(self.free):
            raise OutOfBlocksError("too few")
        table.block_ids += [self.free.pop() for _ in range(self.num_blocks_needed(table, num_tokens))]
        table.num_tokens = num_tokens
        return ()

    def close(self, table):
        self.free += table.block_ids
        table.block_ids = []

    def stats(self):
        num_in_use = self.num_blocks - len(self.free)
        return CacheStats(self.num_blocks, num_in_use, 0, len(self.free), 0, 0.0)


def play(cache) -> tuple[list, Counter]:
    """Six requests in a pool for two: what each step computes, and how often each is preempted."""
    scheduler, log, preempted = Scheduler(SchedulerConfig(4, 8, 64), cache), [], Counter()
    for number in range(6):
        scheduler.add(make_request(f"r{number}", 3 + 4 * number, 12, ignore_eos=True))
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        log.append([(chunk.seq_id, chunk.start, list(chunk.token_ids)) for chunk in plan.chunks])
        preempted.update(plan.preempted)
        tokens = {i: SampledToken(next_token(s.token_ids, 0)) for i, s in scheduler.sequences.items()}
        scheduler.update(plan, {chunk.seq_id: (tokens[chunk.seq_id],) for chunk in plan.chunks if chunk.num_samples})
    assert cache.num_free_blocks == cache.num_blocks, "blocks leaked"
    return log, preempted


def test_the_abstract_methods_are_enough():
    log, preempted = play(PlainAllocator(10, 4))
    assert (log, preempted) == play(CacheManager(10, 4, enable_prefix_caching=False))
    assert preempted, "the pool was to be too small"


class Forgetful(PlainAllocator):
    def grow(self, table, num_tokens):
        super().grow(table, num_tokens)  # and no `return ()`


@pytest.mark.unchecked_types
def test_grow_that_returns_nothing_copies_nothing():
    """The likeliest slip of who writes an allocator once kept the planner in an endless loop."""
    assert play(Forgetful(10, 4)) == play(PlainAllocator(10, 4))


@pytest.mark.parametrize("num_free", [0, 1, 3, 9, 30])
def test_room_is_the_largest_number_of_tokens_that_fits(num_free):
    cache = CacheManager(30, 4)
    for num_held in (0, 1, 4, 6):
        table = cache.open([1])
        cache.grow(table, num_held)
        for twin in (None, cache.fork(table)):
            for wanted in range(1, 60):
                fitting = [n for n in range(num_held, wanted + 1) if cache.num_blocks_needed(table, n) <= num_free]
                expected = wanted if wanted <= num_held else max(fitting)
                assert cache.room(table, wanted, num_free) == expected, f"{wanted} of {num_held}, shared with {twin}"


def test_what_an_allocator_does_not_do_it_says():
    cache = PlainAllocator(3, 4)
    table = cache.open([1, 2])
    with pytest.raises(CacheStateError, match=r"PlainAllocator does not fork: .*n=1"):
        cache.fork(table)
    with pytest.raises(CacheStateError, match="without speculative decoding"):
        cache.truncate(table, 0)
    with pytest.raises(TypeError, match="abstract"):
        type("Nothing", (KVAllocator,), {})()
    assert (cache.load(table, [1, 2]), table.num_cached_tokens, table.num_offered_tokens) == ([], 0, 0)
