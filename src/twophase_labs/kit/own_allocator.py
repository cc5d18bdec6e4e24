"""What allocators over a learner's blocks have in common: the open tables, and counts of their blocks and tokens."""

from typing import Any

from twophase.cache.allocator import CacheStats, KVAllocator
from twophase.core.errors import CacheStateError, OutOfBlocksError


class OwnAllocator(KVAllocator):
    """A `KVAllocator` without its blocks: a subclass takes them from a learner's parts.

    Attributes:
        tables: The open ones, in the order of opening. Each is a `KVTable`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: list[Any] = []

    def require_room(self, table: Any, num_tokens: int) -> int:
        """The blocks that the table needs for `num_tokens`, if they are free."""
        num_needed = self.num_blocks_needed(table, num_tokens)
        if num_needed > self.num_free_blocks:
            raise OutOfBlocksError(f"{num_needed} blocks wanted, {self.num_free_blocks} of {self.num_blocks} free.")
        return num_needed

    def close(self, table: Any) -> None:
        """A subclass then gives the blocks back."""
        if not any(table is other for other in self.tables):
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")
        self.tables.remove(table)

    def stats(self) -> CacheStats:
        """A block that tables share counts once; only the learner's parts know which free blocks they remember."""
        places = [(block_id, i, table) for table in self.tables for i, block_id in enumerate(table.block_ids)]
        filled = {
            block_id: min(self.block_size, table.num_tokens - i * self.block_size) for block_id, i, table in places
        }
        num_in_use, num_tokens = self.num_blocks - self.num_free_blocks, sum(filled.values())
        fragmentation = 1 - num_tokens / (num_in_use * self.block_size) if num_in_use else 0.0
        return CacheStats(self.num_blocks, num_in_use, 0, self.num_free_blocks, num_tokens, fragmentation)
