"""What allocators over a learner's blocks have in common: the tables that are open, and what they hold."""

from typing import Any

from twophase.cache.allocator import CacheStats, KVAllocator
from twophase.core.errors import CacheStateError, OutOfBlocksError


class OwnAllocator(KVAllocator):
    """A `KVAllocator` without its blocks: a subclass takes them from a learner's parts.

    Attributes:
        tables: Those that are open, in the order of opening. Each is a `KVTable`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: list[Any] = []

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        self.require_open(table)
        if num_tokens < table.num_tokens:
            raise CacheStateError(f"A table can't shrink: it has {table.num_tokens} tokens, asked for {num_tokens}.")
        return -(-num_tokens // self.block_size) - len(table.block_ids)

    def stats(self) -> CacheStats:
        """A block that tables share counts once; which free blocks are remembered, the learner's parts know alone."""
        filled: dict[int, int] = {}
        for table in self.tables:
            for index, block_id in enumerate(table.block_ids):
                here = min(self.block_size, max(0, table.num_tokens - index * self.block_size))
                filled[block_id] = max(filled.get(block_id, 0), here)
        num_in_use, num_tokens = self.num_blocks - self.num_free_blocks, sum(filled.values())
        fragmentation = 1 - num_tokens / (num_in_use * self.block_size) if num_in_use else 0.0
        return CacheStats(self.num_blocks, num_in_use, 0, self.num_free_blocks, num_tokens, fragmentation)

    def require_open(self, table: Any) -> None:
        if not any(table is other for other in self.tables):
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")

    def require_free(self, num_wanted: int) -> None:
        if num_wanted > self.num_free_blocks:
            raise OutOfBlocksError(f"{num_wanted} blocks wanted, {self.num_free_blocks} of {self.num_blocks} free.")
