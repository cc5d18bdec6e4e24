"""Your block pool, block tables and forks behind the door `KVAllocator`: each method is a line or two over them."""

from collections.abc import Callable, Sequence
from typing import Any, final

from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy
from twophase_labs.kit.own_allocator import OwnAllocator


@final
class OwnTable:
    """A learner's table as the scheduler reads it: a `KVTable` without prefix hits."""

    num_cached_tokens = num_offered_tokens = 0

    def __init__(self, table: Any) -> None:
        self.table = table

    @property
    def block_ids(self) -> tuple[int, ...]:
        return tuple(self.table.block_ids)  # a copy: the plan of a step still needs it when the table has been freed

    @property
    def num_tokens(self) -> int:
        return int(self.table.num_tokens)


@final
class OwnCache(OwnAllocator):
    """A learner's pool and tables in place of the engine's. `LLM(cache_factory=...)` takes a function that makes one.

    Args:
        pool: Like `BlockPool(num_blocks)`, all of it free.
        new_table: Makes an empty `BlockTable` over that pool.
        fork, prepare_write: Those of exercise 3.4; without them a request has one completion.

    Attributes:
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
        self.pool, self.new_table, self._fork, self._prepare_write = pool, new_table, fork, prepare_write
        self.num_copies = 0

    @property
    def num_free_blocks(self) -> int:
        return int(self.pool.num_free)

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        """One more where tokens will be written into a last block that another table holds, too."""
        is_partial = table.num_tokens % self.block_size != 0 and num_tokens > table.num_tokens
        must_copy = self._fork is not None and is_partial and self.pool.ref_counts[table.block_ids[-1]] > 1
        return super().num_blocks_needed(table, num_tokens) + must_copy

    def open(self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: object = None) -> Any:
        self.tables.append(OwnTable(self.new_table()))
        return self.tables[-1]

    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        num_needed = self.require_room(table, num_tokens)  # a copy on write could not be taken back
        must_copy = num_needed > super().num_blocks_needed(table, num_tokens)
        copies = self._prepare_write(table.table) if self._prepare_write is not None and must_copy else ()
        table.table.grow(num_tokens)
        self.num_copies += len(copies)
        return tuple(BlockCopy(source=int(source), target=int(target)) for source, target in copies)

    def fork(self, table: Any) -> Any:
        if self._fork is None:
            return super().fork(table)
        self.tables.append(OwnTable(self._fork(table.table)))
        return self.tables[-1]

    def close(self, table: Any) -> None:
        super().close(table)
        table.table.free()
