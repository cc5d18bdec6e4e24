"""The allocator of a model whose queries see a window: blocks that no later query sees are given back."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.cache.manager import BlockTable, CacheManager
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.core.plan import BlockCopy, BlockKey
from twophase_features.offloading.tier import KVTier
from twophase_features.windows.sliding_window import FREED, SlidingWindow
from twophase_features.windows.windowed_prefixes import WindowedPrefixes


@dataclass(slots=True, eq=False)
class WindowedTable(BlockTable):
    """The blocks of one sequence, of each group of layers. FREED stands where a block was given back, so that the
    logical block of a position is always position // block_size. It has a block of each group, side by side, in the
    order of the groups.

    Attributes:
        first_kept: Logical blocks before it are FREED in the groups that see a window, unless they hold a sink.
    """

    first_kept: int = 0

    @property
    def held_blocks(self) -> list[int]:
        """The blocks that the table has a reference to, in order."""
        return [block_id for block_id in self.block_ids if block_id != FREED]


class WindowedCache(CacheManager):
    """A `CacheManager` whose tables give up blocks as soon as no query to come sees them (`publish`).

    That bounds a table's blocks whatever its length. Freed blocks stay findable until they are evicted, in the order
    in which they left the window. A hit takes what the next query sees and no more, so it survives the
    eviction of the middle.

    Layers of different kinds are in groups (`LayerGroups`): a logical block has a block of each group, all of one pool.
    The groups that see a window give theirs up, and a hit must be there in all groups.

    A prompt may be many times longer than the pool, so a prefill takes its blocks chunk by chunk, from a reservation:

    1. `reserve` gives a table the right to every block that it can come to hold on its way through the prompt:
       in a group that sees all keys the blocks up to the prompt's end, in the others at most a window's blocks.
    2. Its reservation is that number less the blocks that it alone holds. A block that it takes lowers the reservation
       by one; a block that leaves its window and becomes free raises it by one, until the prompt's end is in sight.
    3. `num_free_blocks` is the number of free blocks less all reservations, and no other table takes more than that.
    4. So a prefill, once begun, never waits: its reservation always has room for the rest of a block.
    5. A hit of blocks that only one prefill held raises that prefill's reservation, for they will not come back to it:
       after `open`, `num_free_blocks` may be negative, and the table must be closed again.

    Args:
        num_blocks, block_size, enable_prefix_caching, tier: As for `CacheManager`.
        window: Which keys queries see. Attention must see no others: their blocks are given away.
        sees_all: For each group of layers, whether its queries see all keys in spite of the window.
    """

    table_class = WindowedTable

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        tier: KVTier | None = None,
        *,
        window: SlidingWindow,
        sees_all: Sequence[bool] = (False,),
    ) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching, tier)
        self.window = window
        self.sees_all = tuple(sees_all)
        self.num_groups = len(self.sees_all)
        self.description = f", window {window.window}, sinks {window.num_sinks}"
        self.description += f", {self.num_groups} groups of layers" if self.num_groups > 1 else ""
        self._prefixes = WindowedPrefixes(block_size, window, self.sees_all)
        self._filling: dict[WindowedTable, int] = {}  # tables with a reservation, and up to which token it goes

    # -- counting

    @property
    def num_free_blocks(self) -> int:
        """Blocks that are free and not reserved. Below 0 after a hit of blocks that a prefill counts on."""
        self._filling = {table: end for table, end in self._filling.items() if table.num_tokens < end}
        return self._pool.num_free - sum(sum(self._reserved(table)) for table in self._filling)

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        """Free blocks that the table needs at most on its way to `num_tokens`, beyond the blocks that it holds or has
        reserved, if each chunk is published before the next one and is as small as it must be.

        A block that others hold too does not come back when it leaves the window, so it counts as still to come. Raises
        CacheStateError if the table is not open here, or has more than `num_tokens` tokens already.
        """
        return max(0, sum(self._to_come(table, num_tokens)) - sum(self._reserved(table)))

    def num_blocks_at_most(self, num_tokens: int, num_shared: int = 0, n: int = 1) -> int:
        """As `KVAllocator`, over all groups: a completion holds at most a window in the groups that see one, if its
        prompt is computed in chunks as small as they must be. Only the sinks of the shared blocks stay there.
        """
        whole = in_window = super().num_blocks_at_most(num_tokens, num_shared, n)
        most = self.window.max_blocks(self.block_size)
        if -(-num_tokens // self.block_size) > most:
            num_sinks = min(num_shared // self.block_size, self._num_sink_blocks)
            in_window = min(whole, num_sinks + n * (most - num_sinks))
        return self.sees_all.count(True) * whole + self.sees_all.count(False) * in_window

    def room(self, table: Any, num_tokens: int, num_free: int) -> int:
        """As `KVAllocator`: the next chunk is as long as the reservation and `num_free` free blocks allow."""
        if num_tokens <= table.num_tokens:
            return num_tokens
        reserved = self._reserved(table)
        counts = range(1, self._num_logical_blocks(table, num_tokens) + 1)
        num_logical = bisect_right(counts, num_free, key=lambda num: _beyond(reserved, num))
        num_logical += len(table.block_ids) // self.num_groups - self._must_copy_tail(table)
        return max(table.num_tokens, min(num_tokens, num_logical * self.block_size))

    @property
    def _num_sink_blocks(self) -> int:
        return self.window.freed_blocks(0, self.block_size).start

    def _to_come(self, table: Any, num_tokens: int) -> list[int]:
        """For each group, the free blocks that a table takes on its way to `num_tokens` before the first comes back."""
        num_logical = self._num_logical_blocks(table, num_tokens)
        most = self.window.max_blocks(self.block_size)
        return [
            num_logical if is_full or not num_logical else min(num_logical, max(0, most - self._num_own(table, group)))
            for group, is_full in enumerate(self.sees_all)
        ]

    def _num_own(self, table: Any, group: int) -> int:
        """Blocks of a group that no other table holds."""
        ref_counts, size = self._pool.ref_counts, self.num_groups
        first = max(self._num_sink_blocks, table.first_kept)
        sinks = table.block_ids[group : self._num_sink_blocks * size : size]
        held = (*sinks, *table.block_ids[first * size + group :: size])
        return sum(ref_counts[block_id] == 1 for block_id in held if block_id != FREED)

    def _reserved(self, table: Any) -> list[int]:
        """A table's reservation in each group."""
        return self._to_come(table, max(self._filling.get(table, 0), table.num_tokens))

    # -- the life of a table

    def open(
        self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: list[BlockKey] | None = None
    ) -> BlockTable:
        table: Any = super().open(token_ids, salt, count_in_stats, keys)
        table.first_kept = self.window.freed_blocks(table.num_cached_tokens, self.block_size).stop
        return table

    def reserve(self, table: Any, num_tokens: int) -> None:
        """The table may grow to `num_tokens` chunk by chunk, as the class says. It takes no block yet."""
        self._require_free(self.num_blocks_needed(table, num_tokens))
        self._filling[table] = num_tokens

    def _grow_by_blocks(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        self._require_free(_beyond(self._reserved(table), self._num_logical_blocks(table, num_tokens)))
        return super()._grow_by_blocks(table, num_tokens)

    def truncate(self, table: Any, num_tokens: int) -> None:
        if (
            FREED in table.block_ids[max(0, num_tokens) // self.block_size * self.num_groups :]
            and num_tokens < table.num_tokens
        ):
            raise CacheStateError(f"Can't cut a table to {num_tokens} tokens: a block behind them left the window.")
        super().truncate(table, num_tokens)

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        """As `CacheManager`; then give up the blocks that no query from position `num_computed` on sees."""
        super().publish(table, token_ids, num_computed)
        end = self.window.freed_blocks(num_computed, self.block_size).stop
        if end <= table.first_kept:
            return
        self._require_computed(table, token_ids, num_computed)
        for index in self._in_window(range(table.first_kept, end)):
            block_id, table.block_ids[index] = table.block_ids[index], FREED
            # The block that left the window first is evicted first.
            self._pool.release(block_id, is_cached=block_id in self._prefixes)
        table.first_kept = end

    def fork(self, table: Any) -> BlockTable:
        """As `CacheManager`. Neither table has a reservation afterwards: a prompt that forks is computed."""
        self._filling.pop(table, None)
        return super().fork(table)

    def close(self, table: Any) -> None:
        super().close(table)
        self._filling.pop(table, None)

    # -- reports

    def num_in_use_by_kind(self) -> dict[str, int]:
        """Blocks in use of the layers that see all keys ('full'), and of the layers that see a window ('sliding').

        Takes time in proportion to the blocks of all tables.
        """
        held: dict[str, set[int]] = {"full": set(), "sliding": set()}
        for table in self._tables:
            for group, sees_all in enumerate(self.sees_all):
                held["full" if sees_all else "sliding"].update(table.block_ids[group :: self.num_groups])
        return {kind: len(block_ids - {FREED}) for kind, block_ids in held.items()}

    # -- parts of the above

    def _holders(self, table: Any, index: int) -> dict[int, int]:
        block_ids = table.block_ids[index * self.num_groups : (index + 1) * self.num_groups]
        return {block_id: group for group, block_id in enumerate(block_ids) if block_id != FREED}

    def _in_window(self, logical: Iterable[int]) -> list[int]:
        """Where a table has the blocks of these logical blocks, of the groups that see a window."""
        groups = [group for group, sees_all in enumerate(self.sees_all) if not sees_all]
        return [index * self.num_groups + group for index in logical for group in groups]

    def _require_free(self, num_blocks: int) -> None:
        if num_blocks > self.num_free_blocks:
            raise OutOfBlocksError(
                f"{num_blocks} blocks wanted, {self.num_free_blocks} of {self.num_blocks} free and not reserved for "
                f"prefills. Free or preempt a sequence, or give the cache more blocks (num_kv_blocks)."
            )


def _beyond(reserved: list[int], num_logical: int) -> int:
    """Blocks that a table takes beyond its reservation to grow by `num_logical` blocks of each group."""
    return sum(max(0, num_logical - num_reserved) for num_reserved in reserved)
