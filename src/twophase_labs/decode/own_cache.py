"""Your block pool and block tables as the engine's cache manager, so that the scheduler works with them.

The scheduler asks a cache manager for a handful of things, and each is a line or two over a pool and tables:

    open     a sequence comes in: an empty table
    num_blocks_needed, num_free_blocks     does it fit, is there room for one more token?
    grow     make room for its tokens; OutOfBlocksError makes the scheduler preempt somebody
    close    it has ended, or was preempted: its pages go back
    stats    how full the pool is, for the trace

There is no prefix caching (`publish` does nothing) and no fork, so a request has one completion (n = 1).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from twophase.cache.manager import CacheManager, CacheStats
from twophase.core.errors import CacheStateError, ConfigError
from twophase.core.plan import BlockCopy


@final
class OwnTable:
    """A learner's table as the scheduler sees it."""

    num_cached_tokens = 0  # found in the cache when it was opened: never any

    def __init__(self, table: Any, name: str) -> None:
        self.table = table
        self.name = name

    @property
    def block_ids(self) -> tuple[int, ...]:
        # A copy: the plan of a step still needs it when the table has been freed.
        return tuple(self.table.block_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.table.num_tokens)


@final
class OwnCache(CacheManager):
    """A learner's pool and tables in place of the engine's. `LLM(cache_factory=...)` takes a function that makes one.

    Args:
        pool: Like `BlockPool(num_blocks)`, all of it free.
        new_table: Makes an empty `BlockTable` over that pool.
        block_size: Slots per block.

    Attributes:
        pool: As given.
        fullest: The tables at the moment when the most blocks were in use: name -> (block ids, tokens). Tables are
            called 'A', 'B', ... in the order of being opened for good.
    """

    def __init__(self, pool: Any, new_table: Callable[[], Any], block_size: int) -> None:
        if block_size < 1 or pool.num_free < 1:
            raise ConfigError(f"A cache needs blocks and slots, got {pool.num_free} blocks of {block_size} slots.")
        self.pool = pool
        self.new_table = new_table
        self.block_size = block_size
        self.num_blocks = pool.num_free
        self.enable_prefix_caching = False
        self.fullest: Mapping[str, tuple[tuple[int, ...], int]] = {}
        self._open: list[OwnTable] = []
        self._num_named = 0
        self._most_in_use = 0

    @property
    def num_free_blocks(self) -> int:
        return int(self.pool.num_free)

    def open(self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: object = None) -> Any:
        table = OwnTable(self.new_table(), name="")
        self._open.append(table)
        return table

    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        self._require_open(table)
        table.table.grow(num_tokens)
        if not table.name:
            table.name = chr(ord("A") + self._num_named % 26)
            self._num_named += 1
        num_in_use = self.num_blocks - self.num_free_blocks
        if num_in_use >= self._most_in_use:
            self._most_in_use = num_in_use
            self.fullest = {t.name: (t.block_ids, t.num_tokens) for t in self._open if t.name}
        return ()  # nothing is shared, so nothing is copied

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        self._require_open(table)
        return max(0, -(-num_tokens // self.block_size) - len(table.block_ids))

    def can_grow(self, table: Any, num_tokens: int) -> bool:
        return self.num_blocks_needed(table, num_tokens) <= self.num_free_blocks

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        pass  # nobody will look for it

    def fork(self, table: Any) -> Any:
        raise CacheStateError("This cache does not fork: ask for one completion per request (n=1).")

    def close(self, table: Any) -> None:
        self._require_open(table)
        table.table.free()
        self._open.remove(table)

    def reset_prefix_cache(self) -> None:
        pass  # there is none

    def stats(self) -> CacheStats:
        num_in_use = self.num_blocks - self.num_free_blocks
        num_slots = num_in_use * self.block_size
        num_tokens = sum(table.num_tokens for table in self._open)
        return CacheStats(
            num_blocks=self.num_blocks,
            num_in_use=num_in_use,
            num_cached=0,
            num_free=self.num_free_blocks,
            num_slots_in_use=num_tokens,
            internal_fragmentation=1 - num_tokens / num_slots if num_slots else 0.0,
            num_queries=0,
            num_queried_tokens=0,
            num_hit_tokens=0,
        )

    def check_integrity(self) -> None:
        held = [block for table in self._open for block in table.block_ids]
        assert len(held) == len(set(held)), f"a block has two owners: {sorted(held)}"
        assert len(held) + self.num_free_blocks == self.num_blocks, f"{len(held)} held, {self.num_free_blocks} free"

    def _require_open(self, table: Any) -> None:
        if not any(table is other for other in self._open):
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")
