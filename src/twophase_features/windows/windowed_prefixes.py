"""Prefix hits when queries see a window: every block that the next query sees must be there, and no other."""

from collections.abc import Sequence

from twophase.cache.prefix_cache import CachedPrefix, PrefixCache
from twophase.core.plan import BlockKey
from twophase_features.windows.sliding_window import FREED, SlidingWindow


class WindowedPrefixes(PrefixCache):
    """A prefix cache that knows contents without a block, and finds what follows them.

    Args:
        window: The keys that a hit must hold for the queries to come.
        sees_all: For each group of layers, whether a hit must hold all of the prefix in spite of the window.
    """

    def __init__(self, block_size: int, window: SlidingWindow, sees_all: Sequence[bool]) -> None:
        super().__init__(block_size)
        self.window = window
        self.sees_all = tuple(sees_all)

    def lookup(self, keys: Sequence[BlockKey], salt: str) -> tuple[list[int], CachedPrefix | None]:
        """Blocks of each group of layers that hold the longest usable prefix of the blocks with these keys, and the
        contents of the last place.

        A prefix is usable if every block is there that the next query sees, in every group. FREED stands for blocks
        that it does not see, whether they are there or not. The answer is ordered as a table's blocks are.
        """
        chain: list[CachedPrefix] = []
        num_hit, groups = 0, range(len(self.sees_all))
        num_leading, num_trailing = [0 for _ in groups], [0 for _ in groups]  # blocks without a gap from either end
        for found in self.known(keys, salt):
            chain.append(found)
            held_groups = set(found.holders.values())
            is_usable = True
            for group in groups:
                num_trailing[group] = num_trailing[group] + 1 if group in held_groups else 0
                num_leading[group] += num_trailing[group] == len(chain)
                unseen = self._unseen(len(chain), group)
                is_usable &= num_leading[group] >= min(unseen.start, len(chain))
                is_usable &= num_trailing[group] >= len(chain) - unseen.stop
            if is_usable:
                num_hit = len(chain)
        unseen_by = [self._unseen(num_hit, group) for group in groups]
        block_ids = [
            FREED if place in unseen_by[group] else _newest(chain[place], group)
            for place in range(num_hit)
            for group in groups
        ]
        return block_ids, chain[num_hit - 1] if num_hit else None

    def _unseen(self, num_blocks: int, group: int) -> range:
        """The blocks of a group that a query behind `num_blocks` full ones does not see."""
        if self.sees_all[group]:
            return range(0)
        return self.window.freed_blocks(num_blocks * self.block_size, self.block_size)


def _newest(prefix: CachedPrefix, group: int) -> int:
    """The group's block with these contents that is evicted last."""
    return next(block_id for block_id in reversed(prefix.holders) if prefix.holders[block_id] == group)
