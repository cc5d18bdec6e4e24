"""The door `KVAllocator`: which blocks of the K/V cache a sequence has. `LLM(cache_factory=...)` makes one."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from twophase.core.errors import CacheStateError
from twophase.core.plan import BlockCopy, BlockKey


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Blocks by state, and hits. `num_in_use + num_cached + num_free == num_blocks`.

    Attributes:
        num_in_use: Blocks that some table holds; a shared one counts once.
        num_cached, num_free: Free blocks that a prefix hit can still find (evictable), and others.
        num_slots_in_use: Slots, in the blocks in use, that belong to a token; it has one in each group of layers.
        internal_fragmentation: Share of the slots, in the blocks in use, that belong to no token, in [0, 1).
        num_queries, num_queried_tokens, num_hit_tokens: Tables opened and grown, their tokens then, and the hits.
        num_evicted: Cached blocks whose contents were given up for another table.
    """

    num_blocks: int
    num_in_use: int
    num_cached: int
    num_free: int
    num_slots_in_use: int
    internal_fragmentation: float
    num_queries: int = 0
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted: int = 0


@runtime_checkable
class KVTable(Protocol):
    """The blocks of one sequence. Only the allocator changes them; the scheduler and the step's plan read.

    Attributes:
        block_ids: In order: position p is in slot p % block_size of block `block_ids[p // block_size]`. A planned step
            keeps the list that it read: growing may append to it, and taking blocks away makes a new list.
        num_tokens: Tokens that have a slot.
        num_cached_tokens: Tokens whose K and V were found by `open`, or loaded by `load`: whole blocks.
        num_offered_tokens: Tokens after these that the KV tier has, for `load`: whole blocks.
    """

    block_ids: Sequence[int]
    num_tokens: int
    num_cached_tokens: int = 0
    num_offered_tokens: int = 0


@runtime_checkable
class KVAllocator(Protocol):
    """Hands out the blocks of one pool to tables, one table a sequence.

    The scheduler calls `open`, `reserve` and `load` when a sequence is admitted (or `close`, if it is not), `grow`
    before a step writes K and V, `publish` when it has run, `truncate` when drafts were wrong, `fork` when a prompt
    with n > 1 is done, `close` at the end and at preemption. A method that raises has changed nothing.

    A subclass writes the abstract methods. The others are right for an allocator without prefix caching, without a KV
    tier and without a window, in which a table holds ceil(num_tokens / block_size) blocks.

    Attributes:
        num_blocks, block_size: Blocks in the pool, and slots per block.
        tier: The `KVTier` that `load` reads from (twophase_features.offloading.tier).
        num_offloaded: Blocks that were copied to the tier so far.
        description: For error messages: which part of its sequence a table holds, if not all.
    """

    num_blocks: int
    block_size: int
    tier: Any = None
    num_offloaded: int = 0
    description: str = ""

    # -- the four counts

    @property
    @abstractmethod
    def num_free_blocks(self) -> int:
        """Blocks that tables can still take: free and not reserved."""

    def num_blocks_needed(self, table: Any, num_tokens: int) -> int:
        """Free blocks that the table needs, beyond its own and its reserved blocks, for `num_tokens` tokens; one for
        the copy of a shared last block among them. Raises CacheStateError if the table is not open here or longer."""
        return -(-num_tokens // self.block_size) - len(table.block_ids)

    def room(self, table: Any, num_tokens: int, num_free: int) -> int:
        """The number of tokens, at most `num_tokens`, for which the table has room in the blocks that it holds or has
        reserved and in at most `num_free` free blocks."""
        if num_tokens <= table.num_tokens or self.num_blocks_needed(table, num_tokens) <= num_free:
            return num_tokens
        lengths = range(table.num_tokens + 1, num_tokens)
        return table.num_tokens + bisect_right(lengths, num_free, key=partial(self.num_blocks_needed, table))

    def num_blocks_at_most(self, num_tokens: int, num_shared: int = 0, n: int = 1) -> int:
        """Blocks of `n` completions of `num_tokens` tokens that share the full blocks of the first `num_shared`."""
        num_shared_blocks = num_shared // self.block_size
        return num_shared_blocks + n * (-(-num_tokens // self.block_size) - num_shared_blocks)

    # -- the life of a table

    @abstractmethod
    def open(
        self, token_ids: Sequence[int], salt: str = "", count_in_stats: bool = True, keys: list[BlockKey] | None = None
    ) -> Any:
        """A new `KVTable`; with prefix caching it holds the longest known prefix of `token_ids`, and no other block.

        Args:
            token_ids: At least one of them is left to compute, for its logits.
            salt: Only blocks published under the same salt are found.
            count_in_stats: False when the request was counted before: it comes back after a preemption.
            keys: Receives the keys of the first blocks; given back after a refusal, it saves hashing them again.
        """

    def reserve(self, table: Any, num_tokens: int) -> None:
        """Reserve blocks for `num_tokens` tokens of a table just opened: others cannot take them."""
        self.grow(table, num_tokens)

    def load(self, table: Any, token_ids: Sequence[int]) -> list[int]:
        """Fill blocks of an admitted table from the KV tier; `num_cached_tokens` grows. Returns the filled blocks."""
        return []

    @abstractmethod
    def grow(self, table: Any, num_tokens: int) -> tuple[BlockCopy, ...]:
        """Make room so that `table.num_tokens == num_tokens`; returns the copies to do before anything is written.
        Raises OutOfBlocksError if too few blocks are free, and CacheStateError as `num_blocks_needed`."""

    def publish(self, table: Any, token_ids: Sequence[int], num_computed: int) -> None:
        """Tokens [0, num_computed) have their K and V in the table's slots, so others may share the full blocks."""
        return

    def truncate(self, table: Any, num_tokens: int) -> None:
        """Take back the slots of tokens [num_tokens, table.num_tokens), for drafts, and blocks without other tokens."""
        raise CacheStateError(f"{type(self).__name__} takes no slots back: run it without speculative decoding.")

    def fork(self, table: Any) -> Any:
        """A second table over the same blocks, for the next completion of the same prompt."""
        raise CacheStateError(f"{type(self).__name__} does not fork: ask for one completion per request (n=1).")

    @abstractmethod
    def close(self, table: Any) -> None:
        """Give up the table's blocks. Raises CacheStateError if it is not open here."""

    @abstractmethod
    def stats(self) -> CacheStats:
        """Counts as of now; called in every step."""

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Raises CacheStateError if blocks are in use."""
        return
