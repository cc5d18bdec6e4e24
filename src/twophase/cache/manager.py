"""The engine's own allocator: full attention over one pool, with copy-on-write and a prefix cache."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from twophase.cache.allocator import CacheStats, KVAllocator
from twophase.cache.block_pool import BlockPool
from twophase.cache.prefix_cache import CachedPrefix, PrefixCache
from twophase.core.errors import CacheStateError
from twophase.core.plan import BlockCopy, BlockKey
from twophase.doors import feature

NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order; see `KVTable`. Only the allocator that opened it changes it; others read.

        [0, num_cached_tokens)                         K and V found by `CacheManager.open` (prefix hit) or `load`
        [num_cached_tokens, num_tokens)                slots handed out by `CacheManager.grow`
        [num_tokens, len(block_ids) * block_size)      room in the last block

    Attributes:
        salt: Tables share cached blocks only with tables of the same salt.
        publish_at: The number of computed tokens with which the next block can be published; NEVER: not at all.
        published: The contents of the last published block, the parent of the next.
        offered: Keys of the blocks after the hit that the KV tier has.
        num_uncounted_tokens: Tokens that `open` looked up, not yet in the statistics.
    """

    block_ids: list[int]
    salt: str
    num_tokens: int
    num_cached_tokens: int
    publish_at: int
    published: CachedPrefix | None = None
    offered: Sequence[BlockKey] = ()
    num_offered_tokens: int = 0
    num_uncounted_tokens: int = 0

    @property
    def held_blocks(self) -> Sequence[int]:
        """The blocks that the table has a reference to, in order."""
        return self.block_ids


class CacheManager(KVAllocator):
    """Hands out the blocks of one pool to block tables, shares them between tables, and remembers their contents.

    Knows nothing of requests or tensors. All methods but `reset_prefix_cache` take time independent of `num_blocks`.

    Args:
        num_blocks: At least 1, or ConfigError is raised.
        enable_prefix_caching: Whether `open` looks up the prefix of its tokens.
        tier: The KV tier to which evicted blocks are offloaded, and from which they are loaded.
    """

    num_groups = 1  # groups of layers; a table lists one block per group for the same tokens, side by side
    table_class: type[BlockTable] = BlockTable

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, tier: Any = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.tier = tier if enable_prefix_caching else None
        self._pool = BlockPool(num_blocks)
        self._prefixes = PrefixCache(block_size)
        self._tables: set[Any] = set()  # BlockTables
        self._num_queries = self._num_queried_tokens = self._num_hit_tokens = 0

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    # -- prefix hits, in the pool and in the tier

    def open(
        self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: list[BlockKey] | None = None
    ) -> BlockTable:
        """As `KVAllocator`. The hit is at most `len(token_ids) - 1` tokens, because the last token must be computed for
        its logits, and whole blocks, so that a shared block is never written again."""
        keys = [] if keys is None else keys
        if self.enable_prefix_caching or self.tier is not None:
            self._prefixes.extend_keys(keys, token_ids, salt, (len(token_ids) - 1) // self.block_size)
        block_ids, published = self._prefixes.lookup(keys, salt)
        num_cached = len(block_ids) // self.num_groups * self.block_size
        publish_at = num_cached + self.block_size if self.enable_prefix_caching else NEVER
        table = self.table_class(block_ids, salt, num_cached, num_cached, publish_at, published)
        table.num_uncounted_tokens = len(token_ids) if count_in_stats else 0
        for block_id in table.held_blocks:
            self._pool.acquire(block_id)
        if self.tier is not None:
            feature("offloading.transfers").offer(self, table, keys)
        self._tables.add(table)
        return table

    def load(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        """As `KVAllocator`: the blocks after the prefix hit that the tier offered to `open`, up to a missing one."""
        return [] if self.tier is None else feature("offloading.transfers").load(self, table, token_ids)

    # -- growing and shrinking

    def _num_logical_blocks(self, table: BlockTable, num_tokens: int) -> int:
        """Logical blocks (a block in each group) that `grow` takes, the copy of a shared one included."""
        self._require_open(table)
        if num_tokens < table.num_tokens:
            raise CacheStateError(f"A table can't shrink: it has {table.num_tokens} tokens, asked for {num_tokens}.")
        num_more = -(-num_tokens // self.block_size) - len(table.block_ids) // self.num_groups
        return num_more + (num_tokens > table.num_tokens and self._must_copy_tail(table))

    num_blocks_needed = _num_logical_blocks  # with one group

    def _must_copy_tail(self, table: BlockTable) -> bool:
        """Whether the next write goes into a block that another table reads too."""
        return table.num_tokens % self.block_size != 0 and self._pool.ref_counts[table.block_ids[-1]] > 1

    def grow(self, table: BlockTable, num_tokens: int) -> tuple[BlockCopy, ...]:
        """As `KVAllocator`. If the last block will be written and is shared, a new block replaces it in this table
        (copy-on-write), without contents until the caller has done the copy."""
        num_new = num_tokens - table.num_tokens
        # The hot path, once per running sequence and step: the slot is in a block that is not shared.
        if (
            0 < num_new <= -table.num_tokens % self.block_size
            and self._pool.ref_counts[table.block_ids[-1]] == 1
            and table in self._tables
        ):
            table.num_tokens = num_tokens
            return ()
        return self._grow_by_blocks(table, num_tokens)

    def _grow_by_blocks(self, table: BlockTable, num_tokens: int) -> tuple[BlockCopy, ...]:
        num_logical = self._num_logical_blocks(table, num_tokens)
        if num_tokens == table.num_tokens:
            return ()
        shared_ids: list[int] = []
        new_ids = self._take(num_logical * self.num_groups)  # raises before anything has changed
        if self._must_copy_tail(table):
            shared_ids = table.block_ids[-self.num_groups :]
            del table.block_ids[-self.num_groups :]
            for shared_id in shared_ids:
                self._pool.release(shared_id, is_cached=False)  # others hold it: it does not become free
        table.block_ids += new_ids
        table.num_tokens = num_tokens
        if table.num_uncounted_tokens:
            self._num_queries += 1
            self._num_queried_tokens += table.num_uncounted_tokens
            self._num_hit_tokens += table.num_cached_tokens
            table.num_uncounted_tokens = 0
        return tuple(map(BlockCopy, shared_ids, new_ids))

    def _take(self, num_blocks: int) -> list[int]:
        """Allocate blocks, and offload and unpublish their old contents. On OutOfBlocksError nothing has changed."""
        block_ids = self._pool.allocate(num_blocks)
        if self.tier is not None:
            keys = {block_id: key for block_id in block_ids if (key := self._prefixes.key_of(block_id)) is not None}
            self.num_offloaded += feature("offloading.transfers").store(self.tier, keys)
        for block_id in block_ids:
            self._prefixes.forget(block_id)
        return block_ids

    def truncate(self, table: BlockTable, num_tokens: int) -> None:
        """As `KVAllocator`. Raises CacheStateError, too, if a slot is in a shared or published block."""
        self._require_open(table)
        if not 0 <= num_tokens <= table.num_tokens:
            raise CacheStateError(f"A table of {table.num_tokens} tokens can't be cut to {num_tokens}.")
        if num_tokens == table.num_tokens:
            return
        for block_id in table.block_ids[num_tokens // self.block_size * self.num_groups :]:
            if self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:
                raise CacheStateError(
                    f"Can't cut a table of {table.num_tokens} tokens to {num_tokens}: block {block_id} is shared or "
                    f"published, so that others may read it."
                )
        num_kept = -(-num_tokens // self.block_size) * self.num_groups
        for block_id in reversed(table.block_ids[num_kept:]):
            self._pool.release(block_id, is_cached=False)
        # A new list: a step plan may still hold the old one.
        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens

    # -- sharing, and giving back

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """As `KVAllocator`. Raises CacheStateError if the table is not open, or fewer tokens have a slot or an id."""
        if num_computed < table.publish_at:
            return
        self._require_computed(table, token_ids, num_computed)
        while table.publish_at <= num_computed:
            start, end = table.publish_at - self.block_size, table.publish_at
            holders = self._holders(table, start // self.block_size)
            published = self._prefixes.register(holders, token_ids[start:end], table.published, table.salt)
            if published is None:  # a digest collision: later blocks could not be found either
                table.publish_at = NEVER
                return
            table.published = published
            table.publish_at = end + self.block_size

    def _holders(self, table: BlockTable, index: int) -> dict[int, int]:
        """The blocks of the table's logical block `index`, as `PrefixCache.register` takes them."""
        return {table.block_ids[index]: 0}

    def _require_computed(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        self._require_open(table)
        if num_computed > min(table.num_tokens, len(token_ids)):
            raise CacheStateError(
                f"Can't publish {num_computed} computed tokens: {table.num_tokens} have a slot, {len(token_ids)} an id."
            )

    def _require_open(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise CacheStateError("This block table is not open in this cache: closed already, or of another cache.")

    def fork(self, table: BlockTable) -> BlockTable:
        """As `KVAllocator`; the first table that writes into a shared partial block copies it."""
        self._require_open(table)
        for block_id in table.held_blocks:
            self._pool.acquire(block_id)
        fork = replace(table, block_ids=list(table.block_ids), num_uncounted_tokens=0)
        self._tables.add(fork)
        return fork

    def close(self, table: BlockTable) -> None:
        """As `KVAllocator`; frees the last block first, so that a block is evicted before its prefix."""
        self._require_open(table)
        self._tables.remove(table)
        for block_id in reversed(table.held_blocks):
            self._pool.release(block_id, is_cached=block_id in self._prefixes)
        # A new list, not clear(): a step plan may still hold the old one.
        table.block_ids, table.num_tokens, table.num_cached_tokens = [], 0, 0
        table.published, table.publish_at, table.offered, table.num_offered_tokens = None, 0, (), 0

    def reset_prefix_cache(self) -> None:
        """As `KVAllocator`."""
        if any(table.block_ids for table in self._tables):
            num_used = f"{self._pool.num_in_use} of {self.num_blocks} blocks are in use"
            raise CacheStateError(f"Can't reset the prefix cache: {num_used}. Finish or abort the requests first.")
        self._prefixes.clear()
        self._pool.blank_all()

    def stats(self) -> CacheStats:
        """As `KVAllocator`; only last blocks have empty slots, and tables that share one have as many tokens."""
        pool, num_slots = self._pool, self._pool.num_in_use * self.block_size
        empty_in = {each.block_ids[-1]: -each.num_tokens % self.block_size for each in self._tables if each.block_ids}
        num_empty = self.num_groups * sum(empty_in.values())
        return CacheStats(
            num_blocks=self.num_blocks,
            num_in_use=pool.num_in_use,
            num_cached=pool.num_cached,
            num_free=pool.num_blank,
            num_slots_in_use=num_slots - num_empty,
            internal_fragmentation=num_empty / num_slots if num_slots else 0.0,
            num_queries=self._num_queries,
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted=pool.num_evicted,
        )
