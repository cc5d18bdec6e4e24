"""Where a sequence's tokens are: position -> block -> slot."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from twophase.cache.prefix_cache import CachedPrefix
from twophase.cache.tier import BlockKey

NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order. Only `CacheManager` changes it; others read.

        [0, num_cached_tokens)                         in pages since `CacheManager.open` (prefix hit)
        [num_cached_tokens, num_tokens)                slots handed out by `CacheManager.grow`
        [num_tokens, len(block_ids) * block_size)      room in the last block

    With a sliding window, blocks that no later query sees are given back, and FREED stands in their place, so that a
    position's block is always at position // block_size.

    If layers are in groups (`LayerGroups`), each group has a block in each place: those of one place stand side by
    side, in the order of the groups.

    Position p is slot block_ids[p // block_size] * block_size + p % block_size. Worked example, block size 4, blocks
    [5, 2], 6 tokens: position 5 is slot 2 * 4 + 1 = 9.

    Attributes:
        block_size: Slots per block.
        salt: Tables share cached blocks only with tables of the same salt.
        block_ids: ceil(num_tokens / block_size) of them for each group, some of them FREED.
        num_tokens: Tokens that have a slot.
        num_cached_tokens: Tokens whose K/V `open` found, a multiple of `block_size`.
        published: The last block that was made findable, by its contents; for `CacheManager.publish`.
        publish_at: Computed tokens that make the next block full, thus publishable; NEVER when none will be.
        num_uncounted_tokens: Looked up by `open`, not yet in the statistics.
        offered: Keys of the blocks after the hit that the KV tier has; for `CacheManager.load`.
        num_groups: Of layers.
        first_kept: Of the blocks without sinks, those before this one are FREED, in the groups that see a window; 0
            without a window.
        free_at: Computed tokens at which it leaves the window and is freed in its turn; NEVER without a window.
    """

    block_size: int
    salt: str
    block_ids: list[int]
    num_tokens: int
    num_cached_tokens: int
    publish_at: int
    num_uncounted_tokens: int
    num_groups: int = 1
    published: CachedPrefix | None = field(default=None, init=False)
    offered: Sequence[BlockKey] = field(default=(), init=False)
    first_kept: int = field(default=0, init=False)
    free_at: int = field(default=NEVER, init=False)

    @property
    def num_offered_tokens(self) -> int:
        """Tokens after the hit whose K and V the KV tier has."""
        return len(self.offered) // self.num_groups * self.block_size

    def of_group(self, group: int) -> list[int]:
        """The blocks of one group of layers, in order."""
        return self.block_ids[group :: self.num_groups]
