"""The cache as the scheduler sees it: open a table, grow it, publish what is written, close it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from twophase.cache.block_pool import BlockPool
from twophase.cache.block_table import NEVER, BlockTable
from twophase.cache.prefix_cache import PrefixCache
from twophase.cache.tier import BlockKey, KVTier
from twophase.core.errors import CacheStateError
from twophase.core.plan import BlockCopy
from twophase_features.windows.sliding_window import FREED, SlidingWindow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A count of blocks by state, and of hits. `num_in_use + num_cached + num_free == num_blocks`.

    Attributes:
        num_in_use: Blocks that some table holds; a shared one counts once.
        num_cached: Free blocks that a prefix hit can still find (evictable).
        num_free: Free blocks with nothing worth keeping.
        num_slots_in_use: Slots of the blocks in use that a token was given; it has one in each group of layers.
        internal_fragmentation: Share of the slots of blocks in use that no token was given, in [0, 1).
        num_queries, num_queried_tokens, num_hit_tokens: Tables opened and grown at least once, the tokens they were
            opened with, and those found in the cache.
        num_evicted: Times the contents of a cached block were given up because another table needed the block.
    """

    num_blocks: int
    num_in_use: int
    num_cached: int
    num_free: int
    num_slots_in_use: int
    internal_fragmentation: float
    num_queries: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the queried tokens that were in the cache; 0 before the first query."""
        return self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else 0.0


class CacheManager:
    """Hands out the blocks of one pool to block tables, shares them between tables, and remembers what they hold.

    Knows nothing of requests or tensors. Only the scheduler calls the methods that change it. One that raises has
    changed nothing, and all but `reset_prefix_cache` take time independent of `num_blocks`.

    With a window, a table gives up blocks as soon as no query to come sees them (`publish`), which bounds its blocks
    whatever its length. They stay findable until they are evicted, the one that left first before the others. A hit
    takes what the next query sees and no more: holding the rest would make long prompts need long pools again, and
    to no use. So a hit needs no block that is not read either, and survives the eviction of the middle.

    Layers of different kinds are in groups (`LayerGroups`). A table then has a block of each group in each place, takes
    as many at once, and gives up those of the groups that see a window; a hit must be there in all groups.

    Args:
        num_blocks: Blocks in the pool, at least 1.
        block_size: Slots per block, at least 1.
        enable_prefix_caching: Whether `open` looks for blocks that hold a prefix already.
        window: Which keys queries see; None: all. Attention must see no others: their blocks are given away.
        sees_all: For each group of layers, whether its queries see all keys in spite of the window.
        tier: Where the contents of evicted blocks go, and where prefixes are looked for that have left the pool.

    Attributes:
        num_offloaded: Blocks that the tier has copied so far.

    Raises:
        ConfigError: `num_blocks` is below 1.
    """

    window: SlidingWindow | None = None
    sees_all: tuple[bool, ...] = (False,)
    num_groups = 1
    tier: KVTier | None = None
    num_offloaded = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        window: SlidingWindow | None = None,
        sees_all: Sequence[bool] = (False,),
        tier: KVTier | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.window = window
        self.sees_all = tuple(sees_all)
        self.num_groups = len(self.sees_all)
        self.tier = tier if enable_prefix_caching else None
        self._pool = BlockPool(num_blocks)
        self._prefixes = PrefixCache(block_size, window, self.sees_all)
        self._tables: set[BlockTable] = set()
        self._num_slots_in_use = 0
        self._num_queries = 0
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `grow` can still take: the blank ones and the evictable ones."""
        return self._pool.num_free

    def open(
        self,
        token_ids: Sequence[int],
        salt: str = "",
        count_in_stats: bool = True,
        keys: list[BlockKey] | None = None,
    ) -> BlockTable:
        """A new table holding the longest known prefix of `token_ids`; takes references and allocates nothing.

        The hit is at most `len(token_ids) - 1` tokens, because the last token must be computed for its logits, and
        rounded down to a block, so that nothing found is ever written again. The hit blocks can't be evicted as long
        as the table holds them.

        Args:
            salt: Only blocks published under the same salt are found.
            keys: What earlier calls noted here, for the same salt and tokens (there may be more of these now), so that
                a request that comes again and again in vain is hashed once.
            count_in_stats: False when the same request was counted before (it comes back after a preemption). A
                table that is closed without ever having grown is not counted either.
        """
        block_ids: list[int] = []
        published = None
        offered: list[BlockKey] = []
        keys = [] if keys is None else keys
        max_blocks = (len(token_ids) - 1) // self.block_size
        if self.enable_prefix_caching:
            block_ids, published = self._prefixes.lookup(token_ids, salt, max_blocks, keys)
        if self.tier is not None:
            offered = self._offered(token_ids, salt, keys, range(len(block_ids) // self.num_groups, max_blocks))
        for block_id in block_ids:
            if block_id != FREED and self._pool.acquire(block_id):
                self._num_slots_in_use += self.block_size
        num_cached = len(block_ids) * self.block_size // self.num_groups
        table = BlockTable(
            block_size=self.block_size,
            salt=salt,
            block_ids=block_ids,
            num_tokens=num_cached,
            num_cached_tokens=num_cached,
            publish_at=num_cached + self.block_size if self.enable_prefix_caching else NEVER,
            num_uncounted_tokens=len(token_ids) if count_in_stats else 0,
            num_groups=self.num_groups,
        )
        table.published, table.offered = published, offered
        if self.window is not None:
            self._note_freed(table, self.window.freed_blocks(num_cached, self.block_size).stop)
        self._tables.add(table)
        return table

    def _offered(self, token_ids: Sequence[int], salt: str, keys: list[BlockKey], blocks: range) -> list[BlockKey]:
        """Keys of the blocks after a hit that the tier has, as many of each group."""
        assert self.tier is not None
        self._prefixes.extend_keys(keys, token_ids, salt, blocks.stop)
        of_groups = [
            key.of_group(group) for key in keys[blocks.start : blocks.stop] for group in range(self.num_groups)
        ]
        num_held = _or_nothing(self.tier.match, of_groups)
        return of_groups[: num_held - num_held % self.num_groups]

    def load(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        """Fill the blocks after a prefix hit from the tier, which told `open` that it has them; they count as cached.

        Args:
            token_ids: As given to `open`.

        Returns:
            The blocks that were filled: fewer than offered if the tier has lost some.

        Raises:
            CacheStateError: The table is not open here, or has not grown by the offered blocks.
        """
        if self.tier is None or not table.offered:
            return []
        self._require_open(table)
        first = table.num_cached_tokens // self.block_size * self.num_groups
        offered, table.offered = table.offered, ()
        block_ids = table.block_ids[first : first + len(offered)]
        if len(block_ids) < len(offered):
            raise CacheStateError(f"{len(offered)} blocks to load, and the table has grown by {len(block_ids)}.")
        num_loaded = _or_nothing(self.tier.load, offered, block_ids)
        num_loaded -= num_loaded % self.num_groups
        table.num_cached_tokens += num_loaded // self.num_groups * self.block_size
        self.publish(table, token_ids, table.num_cached_tokens)
        return block_ids[:num_loaded]

    def num_offered_tokens(self, table: BlockTable) -> int:
        """Tokens after the prefix hit that `load` can fill from the tier."""
        return 0 if self.tier is None else table.num_offered_tokens

    def _store(self, tier: KVTier, block_ids: Sequence[int]) -> None:
        """Offer the tier what blocks hold that are about to be overwritten."""
        keys = {block_id: key for block_id in block_ids if (key := self._prefixes.key_of(block_id)) is not None}
        if keys:
            self.num_offloaded += _or_nothing(tier.store, list(keys.values()), list(keys))

    def grow(self, table: BlockTable, num_tokens: int) -> tuple[BlockCopy, ...]:
        """Make room so that `table.num_tokens == num_tokens`; returns the copies to do before anything is written.

        If the last block will be written and is shared, this table gets a copy of its own (copy-on-write). A step
        that is dropped before its copies were done leaves such a table without its contents: close it, or do them.

        Raises:
            OutOfBlocksError: Not enough free blocks; nothing changed.
            CacheStateError: The table is not open here, or has more than `num_tokens` tokens already.
        """
        block_ids = table.block_ids
        num_new = num_tokens - table.num_tokens
        # The hot path, once per running sequence and step: the slot fits into a block that is this table's alone.
        if (
            num_new > 0
            and num_tokens * self.num_groups <= len(block_ids) * self.block_size
            and self._pool.ref_counts[block_ids[-1]] == 1
            and table in self._tables
        ):
            table.num_tokens = num_tokens
            self._num_slots_in_use += num_new * self.num_groups
            return ()
        return self._grow_by_blocks(table, num_tokens)

    def _grow_by_blocks(self, table: BlockTable, num_tokens: int) -> tuple[BlockCopy, ...]:
        num_blocks_needed = self.num_blocks_needed(table, num_tokens)
        if num_tokens == table.num_tokens:
            return ()
        copies_tail = self._must_copy_tail(table)
        new_ids = self._take(num_blocks_needed)  # raises before anything has changed
        copies: tuple[BlockCopy, ...] = ()
        if copies_tail:
            shared_ids, own_ids = table.block_ids[-self.num_groups :], new_ids[: self.num_groups]
            for shared_id in shared_ids:
                self._pool.release(shared_id, is_cached=False)  # others hold it: it does not become free
            table.block_ids[-self.num_groups :], new_ids = own_ids, new_ids[self.num_groups :]
            self._num_slots_in_use += self._num_tail_slots(table) * self.num_groups  # now they are held twice
            copies = tuple(map(BlockCopy, shared_ids, own_ids))
        table.block_ids += new_ids
        self._num_slots_in_use += (num_tokens - table.num_tokens) * self.num_groups
        table.num_tokens = num_tokens
        self._count_query(table)
        return copies

    def truncate(self, table: BlockTable, num_tokens: int) -> None:
        """Take back the slots of tokens [num_tokens, table.num_tokens), and the blocks that hold no other token.

        For slots that were handed out ahead, and for what was written there and turned out wrong.

        Raises:
            CacheStateError: The table is not open here or has fewer tokens; or one of these slots is in a block that
                another table reads or that a lookup can find. Nothing changed.
        """
        self._require_open(table)
        if not 0 <= num_tokens <= table.num_tokens:
            raise CacheStateError(f"A table of {table.num_tokens} tokens can't be cut to {num_tokens}.")
        if num_tokens == table.num_tokens:
            return
        for block_id in table.block_ids[num_tokens // self.block_size * self.num_groups :]:
            if block_id == FREED or self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:
                raise CacheStateError(
                    f"Can't cut a table of {table.num_tokens} tokens to {num_tokens}: block {block_id} left the window "
                    f"(-1), or is shared or published, so that others may read what is in it."
                )
        num_kept = -(-num_tokens // self.block_size) * self.num_groups
        for block_id in reversed(table.block_ids[num_kept:]):
            self._pool.release(block_id, is_cached=False)
        self._num_slots_in_use -= (table.num_tokens - num_tokens) * self.num_groups
        # A new list: a step plan may still hold the old one.
        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens

    def num_blocks_needed(self, table: BlockTable, num_tokens: int) -> int:
        """Free blocks that `grow(table, num_tokens)` would take, the copy of a shared last block included.

        Raises:
            CacheStateError: The table is not open here, or has more than `num_tokens` tokens already.
        """
        self._require_open(table)
        if num_tokens < table.num_tokens:
            raise CacheStateError(f"A table can't shrink: it has {table.num_tokens} tokens, asked for {num_tokens}.")
        num_more = -(-num_tokens // self.block_size) * self.num_groups - len(table.block_ids)
        will_write = num_tokens > table.num_tokens
        return num_more + (will_write and self._must_copy_tail(table)) * self.num_groups

    def num_blocks_to_come(self, table: BlockTable, num_tokens: int) -> int:
        """Free blocks that growing to `num_tokens` takes at most, by and by: in chunks, each published before the next,
        that are as small as it takes, down to a token. Without a window, as many as at once.

        A block that others hold too does not come back when it leaves the window, so it counts as still to come.

        Raises:
            CacheStateError: As `num_blocks_needed`.
        """
        num_needed = self.num_blocks_needed(table, num_tokens)
        if self.window is None:
            return num_needed
        num_each = num_needed // self.num_groups
        return sum(self.sees_all) * num_each + sum(self._num_local_to_come(table, num_each))

    def _num_local_to_come(self, table: BlockTable, num_needed: int) -> list[int]:
        """For each group that sees a window, how many of so many blocks it takes before the first comes back."""
        assert self.window is not None
        ref_counts, most = self._pool.ref_counts, self.window.max_blocks(self.block_size)
        local = (table.of_group(group) for group, sees_all in enumerate(self.sees_all) if not sees_all)
        num_own = (sum(ref_counts[block_id] == 1 for block_id in held if block_id != FREED) for held in local)
        return [min(num_needed, max(0, most - own)) for own in num_own]

    def num_blocks_at_once(self, table: BlockTable, num_tokens: int, num_spare: int) -> int:
        """Of the blocks to come on the way to `num_tokens`, those that a table can take before any comes back; and with
        them as many more as `num_spare` free ones allow, which are not to come.

        Worked example: a group that sees all keys has 10 blocks to come, and one that sees a window 3, while a place
        takes one of each. With 2 spare ones that is 5 places, so 10 blocks: 8 of them were to come.

        Raises:
            CacheStateError: As `num_blocks_needed`.
        """
        num_needed = self.num_blocks_needed(table, num_tokens)
        if self.window is None:
            return num_needed
        to_come = self._num_local_to_come(table, num_needed // self.num_groups)
        return (min(to_come) + num_spare // len(to_come)) * self.num_groups

    def num_tokens_within(self, table: BlockTable, num_blocks: int) -> int:
        """Tokens that the table has room for once it took so many free blocks, as many of each group."""
        num_each = (len(table.block_ids) + num_blocks) // self.num_groups
        return (num_each - self._must_copy_tail(table)) * self.block_size

    def _unseen(self, num_tokens: int) -> range:
        """Of the blocks of a group that sees a window, those that no query from position `num_tokens` on sees."""
        return range(0) if self.window is None else self.window.freed_blocks(num_tokens, self.block_size)

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Tokens [0, num_computed) have their K/V in the table's slots: make the full blocks among them findable, then
        give up those that no query from position `num_computed` on sees.

        Args:
            token_ids: The sequence's tokens; only those up to `num_computed` are looked at.
            num_computed: Tokens whose K/V are in the table's slots.

        Raises:
            CacheStateError: The table is not open here, or fewer than `num_computed` tokens have a slot or an id.
        """
        if num_computed < table.publish_at and num_computed < table.free_at:
            return
        self._require_open(table)
        if num_computed > min(table.num_tokens, len(token_ids)):
            raise CacheStateError(
                f"Can't publish {num_computed} computed tokens: {table.num_tokens} have a slot, {len(token_ids)} an id."
            )
        self._register_full_blocks(table, token_ids, num_computed)
        if num_computed >= table.free_at:
            self._free_unseen(table, num_computed)

    def _register_full_blocks(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        while table.publish_at <= num_computed:
            start, end = table.publish_at - self.block_size, table.publish_at
            first = start // self.block_size * self.num_groups
            block_ids = table.block_ids[first : first + self.num_groups]
            published = self._prefixes.register(block_ids, token_ids[start:end], table.published, table.salt)
            if published is None:  # a digest collision: what follows could not be found either
                table.publish_at = NEVER
                return
            table.published = published
            table.publish_at = end + self.block_size

    def _free_unseen(self, table: BlockTable, num_computed: int) -> None:
        end = self._unseen(num_computed).stop
        for index in self._local_blocks(range(table.first_kept, end)):
            block_id, table.block_ids[index] = table.block_ids[index], FREED
            self._release(block_id, self.block_size)  # what left the window first is evicted first
        self._note_freed(table, end)

    def _local_blocks(self, places: Iterable[int]) -> list[int]:
        """Where a table has the blocks of these places, of the groups that see a window."""
        groups = [group for group, sees_all in enumerate(self.sees_all) if not sees_all]
        return [place * self.num_groups + group for place in places for group in groups]

    def _note_freed(self, table: BlockTable, first_kept: int) -> None:
        assert self.window is not None
        table.first_kept, table.free_at = first_kept, self.window.num_tokens_to_free(first_kept, self.block_size)

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks; the first of the two to write into a shared partial block copies it.

        Call it when every token that has a slot has been written; what is written later the two don't share.

        Raises:
            CacheStateError: The table is not open here.
        """
        self._require_open(table)
        for block_id in table.block_ids:
            if block_id != FREED:
                self._pool.acquire(block_id)
        fork = BlockTable(
            block_size=self.block_size,
            salt=table.salt,
            block_ids=list(table.block_ids),
            num_tokens=table.num_tokens,
            num_cached_tokens=table.num_cached_tokens,
            publish_at=table.publish_at,
            num_uncounted_tokens=0,
            num_groups=self.num_groups,
        )
        fork.published = table.published
        fork.first_kept, fork.free_at = table.first_kept, table.free_at
        self._tables.add(fork)
        return fork

    def close(self, table: BlockTable) -> None:
        """Give up the table's blocks, last first, so that a prefix is evicted after what continues it.

        Raises:
            CacheStateError: The table is not open here (closed before, or of another manager).
        """
        self._require_open(table)
        self._tables.remove(table)
        num_slots = chain(repeat(self._num_tail_slots(table), self.num_groups), repeat(self.block_size))
        for block_id in reversed(table.block_ids):
            in_block = next(num_slots)  # only the last block, of each group, is partial
            if block_id != FREED:
                self._release(block_id, in_block)
        # A new list, not clear(): a step plan may still hold the old one.
        table.block_ids, table.num_tokens, table.num_cached_tokens = [], 0, 0
        table.published, table.publish_at, table.offered = None, 0, ()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix (the weights changed, a benchmark starts anew).

        Raises:
            CacheStateError: Blocks are in use; nothing was forgotten.
        """
        if any(table.block_ids for table in self._tables):
            raise CacheStateError(
                f"The prefix cache can be reset only when no block is in use; {self._pool.num_in_use} of "
                f"{self.num_blocks} are. Finish or abort the running requests first."
            )
        self._prefixes.clear()
        self._pool.blank_all()

    def stats(self) -> CacheStats:
        """Counts as of now; takes constant time."""
        num_slots = self._pool.num_in_use * self.block_size
        return CacheStats(
            num_blocks=self.num_blocks,
            num_in_use=self._pool.num_in_use,
            num_cached=self._pool.num_cached,
            num_free=self._pool.num_blank,
            num_slots_in_use=self._num_slots_in_use,
            internal_fragmentation=1 - self._num_slots_in_use / num_slots if num_slots else 0.0,
            num_queries=self._num_queries,
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted=self._pool.num_evicted,
        )

    def num_in_use_by_kind(self) -> dict[str, int]:
        """Blocks in use of the layers that see all keys ('full'), and of those that see a window ('sliding').

        Takes time in proportion to the blocks of all tables.
        """
        kinds = ["sliding" if self.window is not None and not sees_all else "full" for sees_all in self.sees_all]
        held: dict[str, set[int]] = {kind: set() for kind in ("full", "sliding")}
        for table in self._tables:
            for group, kind in enumerate(kinds):
                held[kind].update(table.of_group(group))
        return {kind: len(block_ids - {FREED}) for kind, block_ids in held.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError with what is wrong unless all books agree. Slow; for tests."""
        self._pool.check_integrity()
        self._prefixes.check_integrity()
        owners = Counter(block_id for table in self._tables for block_id in table.block_ids)
        del owners[FREED]
        for block_id, ref_count in enumerate(self._pool.ref_counts):
            assert ref_count == owners[block_id], f"block {block_id}: {ref_count} references, {owners[block_id]} owners"
        num_filled: dict[int, int] = {}
        for table in self._tables:
            num_blocks = -(-table.num_tokens // self.block_size)
            num_blocks *= self.num_groups
            assert len(table.block_ids) == num_blocks, f"{num_blocks} blocks hold the tokens of {table}"
            self._check_freed(table)
            for index, block_id in enumerate(table.block_ids):
                if block_id == FREED:
                    continue
                filled = min(self.block_size, table.num_tokens - index // self.num_groups * self.block_size)
                assert num_filled.setdefault(block_id, filled) == filled, f"owners of block {block_id} disagree"
        num_slots = sum(num_filled.values())
        assert self._num_slots_in_use == num_slots, f"{self._num_slots_in_use} slots counted, {num_slots} in use"
        for block_id in self._pool.cached_blocks():
            assert block_id in self._prefixes, f"block {block_id} is kept, but no lookup can find it"

    def _check_freed(self, table: BlockTable) -> None:
        freed = [index for index, block_id in enumerate(table.block_ids) if block_id == FREED]
        first = self._unseen(0).start
        assert freed == self._local_blocks(range(first, table.first_kept)), f"freed {freed} of {table}"

    def _take(self, num_blocks: int) -> list[int]:
        """Free blocks, their old contents no longer findable. Raises OutOfBlocksError, and nothing has changed."""
        block_ids = self._pool.allocate(num_blocks)
        if self.tier is not None:
            self._store(self.tier, block_ids)
        for block_id in block_ids:
            self._prefixes.forget(block_id)
        return block_ids

    def _release(self, block_id: int, num_slots: int) -> None:
        """One owner less of a block with so many slots given to tokens."""
        if self._pool.release(block_id, is_cached=block_id in self._prefixes):
            self._num_slots_in_use -= num_slots

    def _must_copy_tail(self, table: BlockTable) -> bool:
        """Whether the next write goes into a block that another table reads too."""
        return table.num_tokens % self.block_size != 0 and self._pool.ref_counts[table.block_ids[-1]] > 1

    def _num_tail_slots(self, table: BlockTable) -> int:
        """Slots of the last block, of one group, that a token was given."""
        return table.num_tokens - max(0, len(table.block_ids) // self.num_groups - 1) * self.block_size

    def _count_query(self, table: BlockTable) -> None:
        if table.num_uncounted_tokens:
            self._num_queries += 1
            self._num_queried_tokens += table.num_uncounted_tokens
            self._num_hit_tokens += table.num_cached_tokens
            table.num_uncounted_tokens = 0

    def _require_open(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")


def _or_nothing(call: Callable[..., int], *arguments: Sequence[Any]) -> int:
    """What a tier's call returns; 0, and a warning in the log, if it raises: a tier may fail, a request must not."""
    try:
        return call(*arguments)
    except Exception:
        logger.warning("the KV tier failed in %s: its blocks are computed instead", call.__name__, exc_info=True)
        return 0
