"""Where a sequence's tokens are: position -> block -> slot."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from twophase.cache.prefix_cache import CachedPrefix
from twophase.cache.tier import BlockKey

NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order. Only the allocator that opened it changes it; others read.

        [0, num_cached_tokens)                         in pages since `CacheManager.open` (prefix hit) or `load`
        [num_cached_tokens, num_tokens)                slots handed out by `CacheManager.grow`
        [num_tokens, len(block_ids) * block_size)      room in the last block

    Position p is slot block_ids[p // block_size] * block_size + p % block_size. Worked example, block size 4, blocks
    [5, 2], 6 tokens: position 5 is slot 2 * 4 + 1 = 9.

    Attributes:
        block_size: Slots per block.
        salt: Tables share cached blocks only with tables of the same salt.
        block_ids: ceil(num_tokens / block_size) of them.
        num_tokens: Tokens that have a slot.
        num_cached_tokens: Tokens whose K and V were in the cache or in the KV tier, a multiple of `block_size`.
        publish_at: Computed tokens that make the next block full, thus publishable; NEVER when none will be.
        num_uncounted_tokens: Looked up by `open`, not yet in the statistics.
        published: The contents of the last block that was made findable; for `CacheManager.publish`.
        offered: Keys of the blocks behind the hit that the KV tier has; for `CacheManager.load`.
    """

    block_size: int
    salt: str
    block_ids: list[int]
    num_tokens: int
    num_cached_tokens: int
    publish_at: int
    num_uncounted_tokens: int
    published: CachedPrefix | None = None
    offered: Sequence[BlockKey] = ()

    @property
    def num_offered_tokens(self) -> int:
        """Tokens behind the hit whose K and V the KV tier has."""
        return len(self.offered) * self.block_size

    @property
    def held_blocks(self) -> Sequence[int]:
        """The blocks that the table has a reference to, in order."""
        return self.block_ids
