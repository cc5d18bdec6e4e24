"""Finding blocks whose K/V were already computed, by what stands in them and everything before it."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from twophase.cache.tier import BlockKey
from twophase_features.windows.sliding_window import FREED, SlidingWindow

DIGEST_BYTES = 16


def salt_digest(salt: str) -> bytes:
    """Where the chain of a salt starts. The `person` keeps it apart from every block's digest."""
    return hashlib.blake2b(salt.encode(), digest_size=DIGEST_BYTES, person=b"salt").digest()


def block_digest(parent_digest: bytes, token_bytes: bytes) -> bytes:
    """Digest of a full block and, through its parent's digest, of everything before it. The same in every process."""
    return hashlib.blake2b(parent_digest + token_bytes, digest_size=DIGEST_BYTES).digest()


def tokens_to_bytes(token_ids: Sequence[int]) -> bytes:
    """8 bytes per token id."""
    return array("q", token_ids).tobytes()


@dataclass(slots=True, weakref_slot=True, eq=False)
class CachedPrefix:
    """One full block's contents, and the blocks that hold them. Only `PrefixCache` changes it.

    Attributes:
        digest: Chained over the salt, all blocks before this one, and this one.
        parent: What stands before it; None for a sequence's first block.
        salt, token_bytes: Kept to verify hits, for digests can collide.
        block_ids: For each group of layers, every block with these contents, oldest first (a dict as an ordered set):
            two sequences that compute the same prompt at the same time make two, and evicting one must leave the other
            findable. None may be left where a window needs none.
    """

    digest: bytes
    parent: "CachedPrefix | None"
    salt: str
    token_bytes: bytes
    block_ids: tuple[dict[int, None], ...]

    def is_prefix(self, parent: "CachedPrefix | None", salt: str, token_bytes: bytes) -> bool:
        """Whether this really is what was looked for. The parent, itself verified, stands for all that precedes."""
        return self.token_bytes == token_bytes and self.parent is parent and self.salt == salt


class PrefixCache:
    """Digest -> contents -> blocks. Knows nothing of the tables that use a block. Only `CacheManager` calls it.

    Invariant: a prefix's parent is known as long as the prefix is, so comparing parents by identity is exact. It holds
    because a prefix is known as long as anything refers to it: a block that holds it, a prefix that continues it, or a
    table that does. So one whose own block is gone, as a window leaves them behind, still vouches for what follows.

    Args:
        window: What a hit must hold for the queries to come; None: all of the prefix.
        sees_all: For each group of layers, whether a hit must hold all of the prefix in spite of the window.
    """

    def __init__(
        self, block_size: int, window: SlidingWindow | None = None, sees_all: Sequence[bool] = (False,)
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.sees_all = tuple(sees_all)
        self._by_digest: WeakValueDictionary[bytes, CachedPrefix] = WeakValueDictionary()
        self._of_block: dict[int, CachedPrefix] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._of_block

    def lookup(
        self, token_ids: Sequence[int], salt: str, max_blocks: int, keys: list[BlockKey] | None = None
    ) -> tuple[list[int], CachedPrefix | None]:
        """Blocks that hold the longest usable prefix of `token_ids`, at most `max_blocks` in each group of layers, and
        the last one's prefix.

        Usable: every block is there that the next query sees, in every group. Those that it does not see are FREED in
        the answer, whether they are there or not. The answer is ordered as a table's blocks are.

        Args:
            keys: Those of the first blocks, as far as they are known from an earlier lookup; more are added.
        """
        keys = [] if keys is None else keys
        chain: list[CachedPrefix] = []
        num_hit, groups = 0, range(len(self.sees_all))
        num_leading, num_trailing = [0 for _ in groups], [0 for _ in groups]  # blocks without a gap from either end
        for index in range(max_blocks):
            self.extend_keys(keys, token_ids, salt, index + 1)
            digest, token_bytes = keys[index]
            found = self._by_digest.get(digest)
            if found is None or not found.is_prefix(chain[-1] if chain else None, salt, token_bytes):
                break
            chain.append(found)
            is_usable = True  # in every group: all that is seen is there
            for group in groups:
                num_trailing[group] = num_trailing[group] + 1 if found.block_ids[group] else 0
                num_leading[group] += num_trailing[group] == len(chain)
                unseen = self._unseen(len(chain), group)
                is_usable &= num_leading[group] >= min(unseen.start, len(chain))
                is_usable &= num_trailing[group] >= len(chain) - unseen.stop
            if is_usable:
                num_hit = len(chain)
        unseen_by = [self._unseen(num_hit, group) for group in groups]
        # The newest of each: the oldest is the next to be evicted.
        block_ids = [
            FREED if i in unseen_by[group] else next(reversed(chain[i].block_ids[group]))
            for i in range(num_hit)
            for group in groups
        ]
        return block_ids, chain[num_hit - 1] if num_hit else None

    def extend_keys(self, keys: list[BlockKey], token_ids: Sequence[int], salt: str, num_blocks: int) -> None:
        """Add the keys that are not there yet of the first `num_blocks` full blocks of `token_ids`."""
        for index in range(len(keys), num_blocks):
            token_bytes = tokens_to_bytes(token_ids[index * self.block_size : (index + 1) * self.block_size])
            parent_digest = keys[-1].digest if keys else salt_digest(salt)
            keys.append(BlockKey(block_digest(parent_digest, token_bytes), token_bytes))

    def key_of(self, block_id: int) -> BlockKey | None:
        """The key of a block that a lookup can find, as `BlockKey.of_group` has it; None of another block."""
        prefix = self._of_block.get(block_id)
        if prefix is None:
            return None
        group = next(number for number, held in enumerate(prefix.block_ids) if block_id in held)
        return BlockKey(prefix.digest, prefix.token_bytes).of_group(group)

    def _unseen(self, num_blocks: int, group: int) -> range:
        """Of so many full blocks of a group, those that a query after them does not see."""
        if self.window is None or self.sees_all[group]:
            return range(0)
        return self.window.freed_blocks(num_blocks * self.block_size, self.block_size)

    def register(
        self, block_ids: Iterable[int], token_ids: Sequence[int], parent: CachedPrefix | None, salt: str
    ) -> CachedPrefix | None:
        """Make full, written blocks findable, one of each group; FREED: only known, so that what follows can be found.

        None if their digest collides with other contents: then they are not.
        """
        token_bytes = tokens_to_bytes(token_ids)
        digest = block_digest(parent.digest if parent else salt_digest(salt), token_bytes)
        prefix = self._by_digest.get(digest)
        if prefix is None:
            holders: tuple[dict[int, None], ...] = tuple({} for _ in self.sees_all)
            prefix = self._by_digest[digest] = CachedPrefix(digest, parent, salt, token_bytes, holders)
        elif not prefix.is_prefix(parent, salt, token_bytes):
            return None
        for held, block_id in zip(prefix.block_ids, block_ids, strict=True):
            if block_id != FREED:
                held[block_id] = None
                self._of_block[block_id] = prefix
        return prefix

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten. Others with the same contents stay findable."""
        prefix = self._of_block.pop(block_id, None)
        if prefix is not None:
            for held in prefix.block_ids:
                held.pop(block_id, None)

    def clear(self) -> None:
        self._of_block.clear()  # nothing else refers to a prefix when no table is open

    def check_integrity(self) -> None:
        """Raise AssertionError unless both maps agree and every prefix's parent is findable."""
        listed = {
            block_id: prefix for prefix in self._by_digest.values() for held in prefix.block_ids for block_id in held
        }
        assert listed == self._of_block, f"blocks by digest {listed} and by id {self._of_block} differ"
        for digest, prefix in self._by_digest.items():
            assert prefix.digest == digest, f"prefix filed under a foreign digest: {prefix}"
            parent = prefix.parent
            assert parent is None or self._by_digest.get(parent.digest) is parent, f"parent forgotten: {prefix}"
