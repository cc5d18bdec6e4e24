"""Your block pool, block tables and forks as the engine's cache manager, so that the scheduler works with them.

The scheduler asks a cache manager for a handful of things, and each is a line or two over a pool and tables:

    open     a sequence comes in: an empty table
    num_blocks_needed, num_free_blocks     does it fit, is there room for one more token?
    grow     make room for its tokens; OutOfBlocksError makes the scheduler preempt a sequence
    fork     a second completion of the same prompt (n > 1): a second table of the same blocks
    close    it has ended, or was preempted: its blocks go back
    stats    how full the pool is, for the trace

There is no prefix caching: `publish` does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from twophase.cache.manager import CacheManager, CacheStats
from twophase.core.errors import CacheStateError, ConfigError, OutOfBlocksError
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
        fork, prepare_write: Those of exercise 3.3; without them a request has one completion.

    Attributes:
        pool: As given.
        fullest: The tables at the moment when the most blocks were in use: name -> (block ids, tokens). Tables are
            called 'A', 'B', ... in the order of being opened for good.
        num_copies: Blocks copied on write.
    """

    def __init__(
        self,
        pool: Any,
        new_table: Callable[[], Any],
        block_size: int,
        fork: Callable[[Any], Any] | None = None,
        prepare_write: Callable[[Any], Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        if block_size < 1 or pool.num_free < 1:
            raise ConfigError(f"A cache needs blocks and slots, got {pool.num_free} blocks of {block_size} slots.")
        self.pool = pool
        self.new_table = new_table
        self.block_size = block_size
        self.num_blocks = pool.num_free
        self.enable_prefix_caching = False
        self.fullest: Mapping[str, tuple[tuple[int, ...], int]] = {}
        self.num_copies = 0
        self._fork, self._prepare_write = fork, prepare_write
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
        num_needed = self.num_blocks_needed(table, num_tokens)
        if num_needed > self.num_free_blocks:  # before the copy on write, which could not be taken back
            raise OutOfBlocksError(f"{num_needed} blocks wanted, {self.num_free_blocks} of {self.num_blocks} free.")
        copies: Sequence[tuple[int, int]] = ()
        if self._prepare_write is not None and self._must_copy(table, num_tokens):
            copies = self._prepare_write(table.table)
        table.table.grow(num_tokens)
        self.num_copies += len(copies)
        self._name(table)
        num_in_use = self.num_blocks - self.num_free_blocks
        if num_in_use >= self._most_in_use:
            self._most_in_use = num_in_use
            self.fullest = {t.name: (t.block_ids, t.num_tokens) for t in self._open if t.name}
        return tuple(BlockCopy(source=int(source), target=int(target)) for source, target in copies)

    def _name(self, table: OwnTable) -> None:
        if not table.name:
            table.name = chr(ord("A") + self._num_named % 26)
            self._num_named += 1

    def _must_copy(self, table: OwnTable, num_tokens: int) -> bool:
        """Whether tokens will be written into a last block that another table holds, too."""
        is_partial = table.num_tokens % self.block_size != 0 and num_tokens > table.num_tokens
        return self._fork is not None and is_partial and self.pool.ref_counts[table.block_ids[-1]] > 1

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        self._require_open(table)
        num_more = max(0, -(-num_tokens // self.block_size) - len(table.block_ids))
        return num_more + self._must_copy(table, num_tokens)

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        pass  # no request will look for it

    def num_tokens_within(self, table: Any, num_blocks: int) -> int:
        num_copied = self._must_copy(table, table.num_tokens + 1)
        return (len(table.block_ids) + num_blocks - num_copied) * self.block_size

    def fork(self, table: Any) -> Any:
        self._require_open(table)
        if self._fork is None:
            raise CacheStateError("This cache does not fork: ask for one completion per request (n=1).")
        twin = OwnTable(self._fork(table.table), name="")
        self._name(twin)
        self._open.append(twin)
        return twin

    def close(self, table: Any) -> None:
        self._require_open(table)
        table.table.free()
        self._open.remove(table)

    def reset_prefix_cache(self) -> None:
        pass  # there is none

    def stats(self) -> CacheStats:
        num_in_use = self.num_blocks - self.num_free_blocks
        num_slots = num_in_use * self.block_size
        filled: dict[int, int] = {}  # a shared block counts once
        for table in self._open:
            for index, block_id in enumerate(table.block_ids):
                num_here = min(self.block_size, max(0, table.num_tokens - index * self.block_size))
                filled[block_id] = max(filled.get(block_id, 0), num_here)
        num_tokens = sum(filled.values())
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
        num_held = len(set(held))
        assert self._fork is not None or len(held) == num_held, f"a block has two owners: {sorted(held)}"
        assert num_held + self.num_free_blocks == self.num_blocks, f"{num_held} held, {self.num_free_blocks} free"

    def _require_open(self, table: Any) -> None:
        if not any(table is other for other in self._open):
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")
