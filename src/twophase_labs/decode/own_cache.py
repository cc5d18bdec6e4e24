"""Your block pool, block tables and forks behind the door `KVAllocator`, so that the scheduler works with them.

Each method is a line or two over a pool and tables:

    open     a sequence comes in: an empty table
    num_blocks_needed, num_free_blocks     does it fit, is there room for one more token?
    grow     make room for its tokens; OutOfBlocksError makes the scheduler preempt a sequence
    fork     a second completion of the same prompt (n > 1): a second table of the same blocks
    close    it has ended, or was preempted: its blocks go back
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy
from twophase_labs.kit.own_allocator import OwnAllocator


@final
class OwnTable:
    """A learner's table as the scheduler sees it: a `KVTable` without prefix hits."""

    num_cached_tokens = num_offered_tokens = 0

    def __init__(self, table: Any) -> None:
        self.table = table
        self.name = ""

    @property
    def block_ids(self) -> tuple[int, ...]:
        # A copy: the plan of a step still needs it when the table has been freed.
        return tuple(self.table.block_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.table.num_tokens)


@final
class OwnCache(OwnAllocator):
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
        super().__init__(pool.num_free, block_size)
        self.pool, self.new_table = pool, new_table
        self.fullest: Mapping[str, tuple[tuple[int, ...], int]] = {}
        self.num_copies = self._num_named = self._most_in_use = 0
        self._fork, self._prepare_write = fork, prepare_write

    @property
    def num_free_blocks(self) -> int:
        return int(self.pool.num_free)

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        return super().num_blocks_needed(table, num_tokens) + self._must_copy(table, num_tokens)

    def open(self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: object = None) -> Any:
        self.tables.append(OwnTable(self.new_table()))
        return self.tables[-1]

    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        self.require_free(self.num_blocks_needed(table, num_tokens))  # a copy on write could not be taken back
        copies: Sequence[tuple[int, int]] = ()
        if self._prepare_write is not None and self._must_copy(table, num_tokens):
            copies = self._prepare_write(table.table)
        table.table.grow(num_tokens)
        self.num_copies += len(copies)
        self._name(table)
        num_in_use = self.num_blocks - self.num_free_blocks
        if num_in_use >= self._most_in_use:
            self._most_in_use = num_in_use
            self.fullest = {t.name: (t.block_ids, t.num_tokens) for t in self.tables if t.name}
        return tuple(BlockCopy(source=int(source), target=int(target)) for source, target in copies)

    def fork(self, table: Any) -> Any:
        self.require_open(table)
        if self._fork is None:
            return super().fork(table)
        self.tables.append(OwnTable(self._fork(table.table)))
        self._name(self.tables[-1])
        return self.tables[-1]

    def close(self, table: Any) -> None:
        self.require_open(table)
        table.table.free()
        self.tables.remove(table)

    def _must_copy(self, table: Any, num_tokens: int) -> bool:
        """Whether tokens will be written into a last block that another table holds, too."""
        is_partial = table.num_tokens % self.block_size != 0 and num_tokens > table.num_tokens
        return self._fork is not None and is_partial and self.pool.ref_counts[table.block_ids[-1]] > 1

    def _name(self, table: OwnTable) -> None:
        if not table.name:
            table.name = chr(ord("A") + self._num_named % 26)
            self._num_named += 1
