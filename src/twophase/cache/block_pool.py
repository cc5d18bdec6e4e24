"""The block pool: reference counts, and the order in which free blocks are reused."""

from collections import OrderedDict

from twophase.core.errors import CacheStateError, ConfigError, OutOfBlocksError


class BlockPool:
    """Reference counts of `num_blocks` blocks, at least one, and the order in which free ones are reused.

    A block is in one of three states:

        in use   held by `ref_counts[block] > 0` tables
        blank    free, without contents worth keeping: allocated first, the most recently freed block first
        cached   free, its contents findable in the prefix cache: evicted only when no blank block is left,
                 the least recently freed block first
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"A block pool needs at least 1 block, got num_blocks={num_blocks}.")
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self.num_evicted = 0  # cached blocks that were allocated again
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack: block 0 is on top
        self._cached: OrderedDict[int, None] = OrderedDict()  # first = evicted next

    @property
    def num_blank(self) -> int:
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give: blank and cached."""
        return len(self._blank) + len(self._cached)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, num_blocks: int) -> list[int]:
        """Take free blocks, each with a reference count of 1; evicts cached blocks when the blank blocks run out.
        Raises OutOfBlocksError if fewer than `num_blocks` are free."""
        if num_blocks > self.num_free:
            raise OutOfBlocksError(
                f"{num_blocks} blocks wanted, {self.num_free} of {self.num_blocks} free. Free or preempt a sequence, "
                f"or give the cache more blocks (num_kv_blocks)."
            )
        self.num_evicted += max(0, num_blocks - self.num_blank)
        block_ids = []
        for _ in range(num_blocks):
            block_id = self._blank.pop() if self._blank else self._cached.popitem(last=False)[0]
            self.ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def acquire(self, block_id: int) -> None:
        """Add an owner to a block with contents, which is then not free. Raises CacheStateError if it is blank."""
        self._require_known(block_id)
        if self.ref_counts[block_id] == 0:
            if block_id not in self._cached:
                raise CacheStateError(f"Block {block_id} is blank: it has no contents to share. Allocate it instead.")
            del self._cached[block_id]
        self.ref_counts[block_id] += 1

    def release(self, block_id: int, is_cached: bool) -> None:
        """Remove an owner; the last owner frees the block, as cached or as blank. Raises CacheStateError if there is no
        such block, or it has no owner (double free)."""
        self._require_known(block_id)
        if self.ref_counts[block_id] == 0:
            raise CacheStateError(f"Block {block_id} is free already; a block can be freed once per owner.")
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] > 0:
            return
        if is_cached:
            self._cached[block_id] = None
        else:
            self._blank.append(block_id)

    def blank_all(self) -> None:
        """Turn every cached block into a blank one: its contents are no longer findable."""
        while self._cached:
            self._blank.append(self._cached.popitem()[0])

    def _require_known(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise CacheStateError(f"Block {block_id} is not in this pool of {self.num_blocks} blocks.")
