"""The shadow-KV oracle, and plain parts to test a learner's against.

What a slot holds is a function of the tokens up to it, so a hash can stand for K and V. Each slot stores
hash(tokens[:p + 1]); a write stores it, a block copy moves it, and every read compares it with what the reading
sequence's own tokens demand. A stale page, a missed copy, a block given to two sequences: all show as a wrong hash.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from twophase.core.errors import CacheStateError, OutOfBlocksError, TwophaseError


class Finding(TwophaseError):
    """What the oracle found, in words."""


class Content(NamedTuple):
    """What a slot holds: the fingerprint, and for messages who wrote it as which of its positions."""

    fingerprint: int
    writer: str
    position: int


def fingerprints(token_ids: Sequence[int]) -> list[int]:
    """hash(tokens[:p + 1]) for each position p."""
    return list(accumulate(token_ids, lambda before, token: hash((before, token)), initial=17))[1:]


class ShadowKV:
    """Stands in for the K and V tensors of a cache of `num_blocks` blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_slots = num_blocks * block_size
        self.block_size = block_size
        self.slots: dict[int, Content] = {}
        self.num_reads = 0

    def write(self, name: str, table: Any, token_ids: Sequence[int], start: int) -> None:
        """The tokens from position `start` on are computed and stored."""
        values = fingerprints(token_ids)
        for position in range(start, len(token_ids)):
            self.slots[self._slot(name, table, position)] = Content(values[position], name, position)

    def read(self, name: str, table: Any, token_ids: Sequence[int]) -> None:
        """Attention reads all positions. Raises Finding at the first slot that holds something else."""
        for position, value in enumerate(fingerprints(token_ids)):
            slot = self._slot(name, table, position)
            content = self.slots.get(slot)
            self.num_reads += 1
            if content is None:
                raise Finding(f"sequence {name} reads position {position} in slot {slot}, which was never written")
            if content.fingerprint != value:
                whose = "its own" if content.writer == name else f"{content.writer}'s"
                raise Finding(
                    f"sequence {name} reads position {position} in slot {slot}, "
                    f"which holds {whose} position {content.position}"
                )

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Whole blocks, as (source, target)."""
        for source, target in copies:
            for offset in range(self.block_size):
                content = self.slots.get(source * self.block_size + offset)
                if content is not None:
                    self.slots[target * self.block_size + offset] = content

    def _slot(self, name: str, table: Any, position: int) -> int:
        slot = table.slot(position)
        if not 0 <= slot < self.num_slots:
            raise Finding(
                f"position {position} of sequence {name} is in slot {slot}, outside the memory of "
                f"{self.num_slots} slots"
            )
        return slot


class WatchedPool:
    """A strict pool with the interface of exercise 3.2. Which free block comes next is drawn by lot."""

    def __init__(self, num_blocks: int, seed: int = 0) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._lot = random.Random(seed)

    @property
    def num_free(self) -> int:
        return self.ref_counts.count(0)

    def allocate(self, n: int) -> list[int]:
        if n < 0:
            raise CacheStateError(f"allocate({n}): a number of blocks cannot be negative.")
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} of {self.num_blocks} free.")
        taken = self._lot.sample([b for b, count in enumerate(self.ref_counts) if not count], n)
        for block_id in taken:
            self.ref_counts[block_id] = 1
        return taken

    def acquire(self, block_id: int) -> None:
        self._require_in_use(block_id)
        self.ref_counts[block_id] += 1

    def release(self, block_id: int) -> None:
        self._require_in_use(block_id)
        self.ref_counts[block_id] -= 1

    def _require_in_use(self, block_id: int) -> None:
        if not 0 <= block_id < len(self.ref_counts) or not self.ref_counts[block_id]:
            raise CacheStateError(f"Block {block_id} is not in use.")


class PlainTable:
    """A table with the interface of exercise 3.3."""

    __slotnames__: ClassVar[list[str]] = []  # copy.copy sets it, and an answer that uses that has replaced nothing

    def __init__(self, pool: Any, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.block_ids: list[int] = []
        self.num_tokens = 0

    def grow(self, num_tokens: int) -> None:
        num_missing = 0
        while (len(self.block_ids) + num_missing) * self.block_size < num_tokens:
            num_missing += 1
        self.block_ids.extend(self.pool.allocate(num_missing))
        self.num_tokens = num_tokens

    def slot(self, position: int) -> int:
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"position {position} has no slot: this table has {self.num_tokens} tokens")
        logical, offset = divmod(position, self.block_size)
        return self.block_ids[logical] * self.block_size + offset

    def free(self) -> None:
        while self.block_ids:
            self.pool.release(self.block_ids.pop())
        self.num_tokens = 0
