"""The allocator of a model whose queries see a window: blocks that no later query sees are given back."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.cache.manager import NEVER, BlockTable, CacheManager
from twophase.cache.tier import BlockKey, KVTier
from twophase.core.errors import CacheStateError, OutOfBlocksError
from twophase.core.plan import BlockCopy
from twophase_features.windows.sliding_window import FREED, SlidingWindow
from twophase_features.windows.windowed_prefixes import WindowedPrefixes


@dataclass(slots=True, eq=False)
class WindowedTable(BlockTable):
    """The blocks of one sequence, of each group of layers. FREED stands where a block was given back, so that the
    blocks of a position are always at place position // block_size. The blocks of one place stand side by side, in the
    order of the groups.

    Attributes:
        num_groups: Groups of layers.
        first_kept: Places before this one that hold no sink are FREED in the groups that see a window.
        free_at: Computed tokens at which the block of place `first_kept` is freed.
        num_reserved_tokens: Tokens up to which the table may grow whatever others take.
    """

    num_groups: int = 1
    first_kept: int = 0
    free_at: int = NEVER
    num_reserved_tokens: int = 0

    @property
    def num_offered_tokens(self) -> int:
        """Tokens behind the hit whose K and V the KV tier has."""
        return len(self.offered) // self.num_groups * self.block_size

    @property
    def held_blocks(self) -> list[int]:
        """The blocks that the table has a reference to, in order."""
        return [block_id for block_id in self.block_ids if block_id != FREED]

    def of_group(self, group: int) -> list[int]:
        """The blocks of one group of layers, in order."""
        return self.block_ids[group :: self.num_groups]


class WindowedCache(CacheManager):
    """A `CacheManager` whose tables give up blocks as soon as no query to come sees them (`publish`).

    That bounds a table's blocks whatever its length. Freed blocks stay findable until they are evicted, the one that
    left the window first before the others. A hit takes what the next query sees and no more, so it survives the
    eviction of the middle.

    Layers of different kinds are in groups (`LayerGroups`): a place of a table has a block of each group, all of one
    pool. The groups that see a window give theirs up, and a hit must be there in all groups.

    A prompt may be many times longer than the pool, so a prefill takes its blocks chunk by chunk, from a reservation:

    1. `reserve` gives a table the right to every block that it can come to hold on its way through the prompt:
       in a group that sees all keys those up to the prompt's end, in the others at most those of a window.
    2. Its reservation is that number less the blocks that it alone holds. A block that it takes lowers the reservation
       by one; a block that leaves its window and becomes free raises it by one, until the prompt's end is in sight.
    3. `num_free_blocks` is what is free less all reservations, and no other table takes more than that.
    4. So a prefill, once begun, never waits: its reservation always has room for the rest of a block.
    5. A hit of blocks that only one prefill held raises that prefill's reservation, for they will not come back to it:
       after `open`, `num_free_blocks` may be negative, and the table must be closed again.

    Args:
        num_blocks, block_size, enable_prefix_caching, tier: As for `CacheManager`.
        window: Which keys queries see. Attention must see no others: their blocks are given away.
        sees_all: For each group of layers, whether its queries see all keys in spite of the window.
    """

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
        self._filling: set[WindowedTable] = set()  # those with a reservation

    # -- counting

    @property
    def num_free_blocks(self) -> int:
        """Blocks that are free and not reserved. Below 0 after a hit of what a prefill counts on."""
        for table in [table for table in self._filling if table.num_tokens >= table.num_reserved_tokens]:
            self._end_reservation(table)
        return self._pool.num_free - sum(sum(self._reserved(table)) for table in self._filling)

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        """Free blocks that the table needs at most on its way to `num_tokens`, beyond those it holds or has reserved,
        if each chunk is published before the next one and is as small as it must be.

        A block that others hold too does not come back when it leaves the window, so it counts as still to come.

        Raises:
            CacheStateError: The table is not open here, or has more than `num_tokens` tokens already.
        """
        self._require_no_less(table, num_tokens)
        return max(0, sum(self._to_come(table, num_tokens)) - sum(self._reserved(table)))

    def num_blocks_at_most(self, num_tokens: int, num_shared: int = 0, n: int = 1) -> int:
        """As `KVAllocator`, over all groups: a completion holds at most a window in the groups that see one, if its
        prompt is computed in chunks as small as they must be. Of the shared blocks only the sinks stay there.
        """
        whole = in_window = super().num_blocks_at_most(num_tokens, num_shared, n)
        most = self.window.max_blocks(self.block_size)
        if -(-num_tokens // self.block_size) > most:
            num_sinks = min(num_shared // self.block_size, self._num_sink_blocks)
            in_window = min(whole, num_sinks + n * (most - num_sinks))
        return self.sees_all.count(True) * whole + self.sees_all.count(False) * in_window

    def room(self, table: Any, num_tokens: int, num_free: int) -> int:
        """As `KVAllocator`: the next chunk is as long as the reservation, and so many free blocks, allow."""
        if num_tokens <= table.num_tokens:
            return num_tokens
        reserved = self._reserved(table)
        places = range(1, self._num_places(table, num_tokens) + 1)
        num_places = bisect_right(places, num_free, key=lambda num: _beyond(reserved, num))
        num_places += len(table.block_ids) // self.num_groups - self._must_copy_tail(table)
        return max(table.num_tokens, min(num_tokens, num_places * self.block_size))

    @property
    def _num_sink_blocks(self) -> int:
        return self.window.freed_blocks(0, self.block_size).start

    def _num_places(self, table: Any, num_tokens: int) -> int:
        """Places for which a table takes blocks to have room for `num_tokens`, the copy of a shared one included."""
        num_more = -(-num_tokens // self.block_size) - len(table.block_ids) // self.num_groups
        return num_more + (num_tokens > table.num_tokens and self._must_copy_tail(table))

    def _to_come(self, table: Any, num_tokens: int) -> list[int]:
        """For each group, the free blocks that a table takes on its way to `num_tokens` before the first comes back."""
        num_places = self._num_places(table, num_tokens)
        most = self.window.max_blocks(self.block_size)
        return [
            num_places if is_full or not num_places else min(num_places, max(0, most - self._num_own(table, group)))
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
        return self._to_come(table, max(table.num_reserved_tokens, table.num_tokens))

    # -- the life of a table

    def reserve(self, table: Any, num_tokens: int) -> None:
        """The table may grow to `num_tokens` chunk by chunk, as the class says. It takes no block yet."""
        self._require_free(self.num_blocks_needed(table, num_tokens))
        table.num_reserved_tokens = num_tokens
        self._filling.add(table)

    def load(self, table: Any, token_ids: Sequence[int]) -> list[int]:
        """As `CacheManager`, in chunks: as many blocks at a time as the reservation has room for."""
        loaded: list[int] = []
        while self.tier is not None and table.offered:
            num_tokens = self.room(table, table.num_tokens + table.num_offered_tokens, num_free=0)
            num_keys = self._index((num_tokens - table.num_tokens) // self.block_size)
            keys, table.offered = table.offered[:num_keys], table.offered[num_keys:]
            self.grow(table, num_tokens)
            block_ids = self._fill(self.tier, table, token_ids, keys) if keys else []
            loaded += block_ids
            if not keys or len(block_ids) < len(keys):  # there is no room, or the tier has lost some
                table.offered = ()
        return loaded

    def _grow_by_blocks(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        self._require_no_less(table, num_tokens)
        if num_tokens == table.num_tokens:
            return ()
        num_places, copies_tail = self._num_places(table, num_tokens), self._must_copy_tail(table)
        self._require_free(_beyond(self._reserved(table), num_places))
        new_ids = self._take(num_places * self.num_groups)
        copies: tuple[BlockCopy, ...] = ()
        if copies_tail:
            shared_ids = table.block_ids[-self.num_groups :]
            for shared_id in shared_ids:
                self._pool.release(shared_id, is_cached=False)  # others hold it: it does not become free
            copies = tuple(map(BlockCopy, shared_ids, new_ids))
            del table.block_ids[-self.num_groups :]
        table.block_ids += new_ids
        self._note_growth(table, num_tokens, copies_tail)
        return copies

    def truncate(self, table: Any, num_tokens: int) -> None:
        if (
            FREED in table.block_ids[self._index(max(0, num_tokens) // self.block_size) :]
            and num_tokens < table.num_tokens
        ):
            raise CacheStateError(f"Can't cut a table to {num_tokens} tokens: a block behind them left the window.")
        super().truncate(table, num_tokens)

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        """As `CacheManager`; then give up the blocks that no query from position `num_computed` on sees."""
        super().publish(table, token_ids, num_computed)
        if num_computed < table.free_at:
            return
        self._require_computed(table, token_ids, num_computed)
        end = self.window.freed_blocks(num_computed, self.block_size).stop
        for index in self._in_window(range(table.first_kept, end)):
            block_id, table.block_ids[index] = table.block_ids[index], FREED
            # What left the window first is evicted first.
            self._pool.release(block_id, is_cached=block_id in self._prefixes)
        self._note_freed(table, end)

    def fork(self, table: Any) -> BlockTable:
        """As `CacheManager`. Neither table has a reservation afterwards: a prompt that forks is computed."""
        self._end_reservation(table)
        return super().fork(table)

    def close(self, table: Any) -> None:
        super().close(table)
        self._end_reservation(table)

    # -- reports and checks

    def num_in_use_by_kind(self) -> dict[str, int]:
        """Blocks in use of the layers that see all keys ('full'), and of those that see a window ('sliding').

        Takes time in proportion to the blocks of all tables.
        """
        held: dict[str, set[int]] = {"full": set(), "sliding": set()}
        for table in self._tables:
            for group, sees_all in enumerate(self.sees_all):
                held["full" if sees_all else "sliding"].update(table.of_group(group))
        return {kind: len(block_ids - {FREED}) for kind, block_ids in held.items()}

    def check_integrity(self) -> None:
        super().check_integrity()
        for table in self._tables:
            freed = [index for index, block_id in enumerate(table.block_ids) if block_id == FREED]
            expected = self._in_window(range(self._num_sink_blocks, table.first_kept))
            assert freed == expected, f"freed {freed} of {table}"
            assert (table in self._filling) == (table.num_reserved_tokens > 0), f"reserved: {table}"

    # -- parts of the above

    def _new_table(self, block_ids: list[int], salt: str) -> WindowedTable:
        num_cached = len(block_ids) // self.num_groups * self.block_size
        publish_at = num_cached + self.block_size if self.enable_prefix_caching else NEVER
        table = WindowedTable(self.block_size, salt, block_ids, num_cached, num_cached, publish_at, 0)
        table.num_groups = self.num_groups
        self._note_freed(table, self.window.freed_blocks(num_cached, self.block_size).stop)
        return table

    def _offered(self, tier: KVTier, keys: list[BlockKey]) -> list[BlockKey]:
        of_groups = [key.of_group(group) for key in keys for group in range(self.num_groups)]
        offered = super()._offered(tier, of_groups)
        return offered[: len(offered) - len(offered) % self.num_groups]

    def _index(self, place: int) -> int:
        return place * self.num_groups

    def _holders(self, table: Any, place: int) -> dict[int, int]:
        block_ids = table.block_ids[self._index(place) : self._index(place + 1)]
        return {block_id: group for group, block_id in enumerate(block_ids) if block_id != FREED}

    def _in_window(self, places: Iterable[int]) -> list[int]:
        """Where a table has the blocks of these places, of the groups that see a window."""
        groups = [group for group, sees_all in enumerate(self.sees_all) if not sees_all]
        return [self._index(place) + group for place in places for group in groups]

    def _note_freed(self, table: Any, first_kept: int) -> None:
        table.first_kept, table.free_at = first_kept, self.window.num_tokens_to_free(first_kept, self.block_size)

    def _end_reservation(self, table: Any) -> None:
        table.num_reserved_tokens = 0
        self._filling.discard(table)

    def _require_free(self, num_blocks: int) -> None:
        if num_blocks > self.num_free_blocks:
            raise OutOfBlocksError(
                f"{num_blocks} blocks wanted, {self.num_free_blocks} of {self.num_blocks} free and not reserved for "
                f"prefills. Free or preempt a sequence, or give the cache more blocks (num_kv_blocks)."
            )


def _beyond(reserved: list[int], num_places: int) -> int:
    """Blocks that a table takes beyond its reservation for so many places."""
    return sum(max(0, num_places - num_reserved) for num_reserved in reserved)
