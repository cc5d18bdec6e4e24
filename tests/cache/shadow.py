"""The shadow-KV oracle: what a slot holds is a function of the tokens up to it, so a hash can stand for K and V.

Each slot stores hash(tokens[:p+1]). A write stores it, a block copy moves it, and every read compares it with what the
reading sequence's own tokens demand. Stale pages, missed copies, wrong hits and slots shared by mistake all show.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate

from tests.cache.integrity import check_integrity
from twophase.cache.manager import BlockTable, CacheManager
from twophase.cache.prefix_cache import PrefixCache
from twophase.core.plan import BlockCopy, BlockKey, StepPlan
from twophase_features.windows.sliding_window import FREED, SlidingWindow


def fingerprints(token_ids: Sequence[int], salt: str = "") -> list[int]:
    """hash(tokens[:p+1]) for each position p. The salt is part of it, so that a hit across salts is found too."""
    return list(accumulate(token_ids, lambda parent, token_id: hash((parent, token_id)), initial=hash(salt)))[1:]


def is_visible(position: int, query: int, window: SlidingWindow | None) -> bool:
    """Whether a query at `query` sees the key at `position`, by the definition."""
    return position <= query and (window is None or position > query - window.window or position < window.num_sinks)


def _move(
    source: dict[int, int], source_block: int, target: dict[int, int], target_block: int, block_size: int
) -> None:
    for offset in range(block_size):
        value = source.get(source_block * block_size + offset, 0)
        target[target_block * block_size + offset] = value


class StaleKVError(AssertionError):
    """A read met a slot that does not hold what the sequence's tokens demand."""


class ShadowKV:
    """Stands in for the K/V tensors of one cache, and for attention that sees `window`.

    In a group of layers that sees all keys, a slot holds another value than in one that does not.
    """

    def __init__(
        self, block_size: int, window: SlidingWindow | None = None, sees_all: Sequence[bool] = (False,)
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.sees_all = tuple(sees_all)
        self.slots: dict[int, int] = {}

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            _move(self.slots, source, self.slots, target, self.block_size)

    def host_blocks(self, num_blocks: int) -> "ShadowHostBlocks":
        return ShadowHostBlocks(self, num_blocks)

    def write(self, block_ids: Sequence[int], token_ids: Sequence[int], start: int, end: int, salt: str = "") -> None:
        """Positions [start, end) of a sequence are computed."""
        values = fingerprints(token_ids[:end], salt)
        for group in range(len(self.sees_all)):
            for position in range(start, end):
                self.slots[self._slot(block_ids, position, group)] = values[position] ^ group

    def read(
        self,
        block_ids: Sequence[int],
        token_ids: Sequence[int],
        num_tokens: int,
        salt: str = "",
        first_query: int | None = None,
    ) -> None:
        """Attention reads positions [0, num_tokens), as far as queries see them. Raises StaleKVError at a wrong slot.

        Args:
            first_query: Queries are at this position and later; by default at `num_tokens`, the next to come.
        """
        first_query = num_tokens if first_query is None else first_query
        for group, sees_all in enumerate(self.sees_all):
            for position, value in enumerate(fingerprints(token_ids[:num_tokens], salt)):
                if not is_visible(position, max(position, first_query), None if sees_all else self.window):
                    continue
                slot = self._slot(block_ids, position, group)
                if self.slots.get(slot) != value ^ group:
                    raise StaleKVError(
                        f"position {position} of {num_tokens} reads slot {slot}, which holds other tokens"
                    )

    def run(
        self,
        plan: StepPlan,
        token_ids_of: Callable[[int], Sequence[int]],
        salt_of: Callable[[int], str] = lambda seq_id: "",
    ) -> None:
        """Do a step as the model does: every write, then every read. Its blocks were copied when it was planned."""
        for chunk in plan.chunks:
            token_ids, end = token_ids_of(chunk.seq_id), chunk.start + len(chunk.token_ids)
            assert list(token_ids[chunk.start : end]) == list(chunk.token_ids), f"not the sequence's tokens: {chunk}"
            self.write(chunk.block_ids, token_ids, chunk.start, end, salt_of(chunk.seq_id))
        for chunk in plan.chunks:
            end = chunk.start + len(chunk.token_ids)
            self.read(chunk.block_ids, token_ids_of(chunk.seq_id), end, salt_of(chunk.seq_id), chunk.start)

    def _slot(self, block_ids: Sequence[int], position: int, group: int) -> int:
        block_id = block_ids[position // self.block_size * len(self.sees_all) + group]
        if block_id == FREED:
            raise StaleKVError(f"position {position} lies in a block that was freed")
        return block_id * self.block_size + position % self.block_size


class ShadowHostBlocks:
    """Stands in for the blocks of host memory of a KV tier."""

    def __init__(self, shadow: ShadowKV, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.shadow = shadow
        self.slots: dict[int, int] = {}

    def save(self, moves: Sequence[BlockCopy]) -> None:
        for block, host_block in moves:
            assert 0 <= host_block < self.num_blocks
            _move(self.shadow.slots, block, self.slots, host_block, self.shadow.block_size)

    def restore(self, moves: Sequence[BlockCopy]) -> None:
        for host_block, block in moves:
            _move(self.slots, host_block, self.shadow.slots, block, self.shadow.block_size)


def keys_of(prefixes: PrefixCache, token_ids: Sequence[int]) -> list[BlockKey]:
    """The keys of the full blocks of these tokens."""
    keys: list[BlockKey] = []
    prefixes.extend_keys(keys, token_ids, "", len(token_ids) // prefixes.block_size)
    return keys


def check_findable(cache: CacheManager, shadow: ShadowKV) -> None:
    """What a lookup can find is what it says, to the last slot, whoever holds the block or nobody."""
    prefixes = cache._prefixes
    values: dict[int, list[int]] = {}  # of whole prefixes, by the id of their last block's contents

    def values_of(prefix) -> list[int]:
        if id(prefix) not in values:
            tokens, parent = memoryview(prefix.token_bytes).cast("q"), prefix.parent
            before = hash(prefix.salt) if parent is None else values_of(parent)[-1]
            values[id(prefix)] = list(accumulate(tokens, lambda seen, token: hash((seen, token)), initial=before))[1:]
        return values[id(prefix)]

    for block_id, prefix in prefixes._of_block.items():
        first = block_id * cache.block_size
        held = [shadow.slots.get(first + offset) for offset in range(cache.block_size)]
        expected = [value ^ prefix.holders[block_id] for value in values_of(prefix)]
        assert held == expected, f"block {block_id} can be found, and holds other tokens than it says"


def check_kept(
    table: BlockTable, size: int, num_computed: int, window: SlidingWindow | None, sees_all: Sequence[bool] = (False,)
) -> None:
    """A table holds a block if and only if a query to come sees some of it: bounded, and never too few."""
    for number, block_id in enumerate(table.block_ids):
        index, group = divmod(number, len(sees_all))
        seen = None if sees_all[group] else window
        positions = range(index * size, (index + 1) * size)
        is_needed = any(p >= num_computed or is_visible(p, num_computed, seen) for p in positions)
        is_kept = block_id != FREED
        assert is_kept == is_needed, f"block {index} of {table} at {num_computed} tokens: {is_kept=}, {is_needed=}"


def num_reserved(
    cache: CacheManager, table: BlockTable, num_tokens: int, window: SlidingWindow | None, sees_all: Sequence[bool]
) -> int:
    """Blocks that a table must be able to take, if it is to reach `num_tokens` without waiting: in a group that sees
    all keys those that it lacks; in the others no more than what makes a window of blocks that it alone holds."""
    total, ref_counts = 0, cache._pool.ref_counts
    for group, is_full in enumerate(sees_all):
        block_ids = table.block_ids[group :: len(sees_all)]
        num_own = sum(block_id != FREED and ref_counts[block_id] == 1 for block_id in block_ids)
        num_more = -(-num_tokens // cache.block_size) - len(block_ids)
        is_copied = table.num_tokens % cache.block_size != 0 and ref_counts[block_ids[-1]] > 1
        num_more += num_tokens > table.num_tokens and is_copied
        total += (
            num_more
            if is_full or window is None
            else min(num_more, max(0, window.max_blocks(cache.block_size) - num_own))
        )
    return total


def check_live_tables(cache: CacheManager, tables: Iterable[BlockTable]) -> None:
    """No live table points at a free block, and no block is in use without one. `tables` are all that are open."""
    held = {block_id for table in tables for block_id in table.block_ids} - {FREED}
    stats = cache.stats()
    assert stats.num_in_use == len(held), f"live tables hold {len(held)} blocks, the pool says {stats.num_in_use}"
    assert stats.num_in_use + stats.num_cached + stats.num_free == cache.num_blocks, f"blocks got lost: {stats}"
    check_integrity(cache)


def snapshot(cache: CacheManager) -> Hashable:
    """Everything the cache knows, to compare before and after something that must change nothing."""
    pool, prefixes, num_free = cache._pool, cache._prefixes, cache.num_free_blocks
    tables = {
        (
            id(table),
            tuple(table.block_ids),
            table.num_tokens,
            table.publish_at,
            table.num_uncounted_tokens,
            getattr(table, "first_kept", None),
            getattr(cache, "_filling", {}).get(table),
        )
        for table in cache._tables
    }
    findable = {
        (prefix.digest, prefix.token_bytes, tuple(prefix.holders.items())) for prefix in prefixes._by_digest.values()
    }
    return (
        tuple(pool.ref_counts),
        tuple(pool._blank),
        tuple(pool._cached),
        frozenset(tables),
        frozenset(findable),
        num_free,
        cache.stats(),
    )
