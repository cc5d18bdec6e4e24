"""A hash-chained index from token prefixes to the blocks that hold their K and V."""

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from twophase.core.plan import BlockKey

DIGEST_BYTES = 16


def salt_digest(salt: str) -> bytes:
    """The digest that starts a salt's chain. BLAKE2's `person` makes it differ from every block's digest."""
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
        parent: The contents of the block before; None for a sequence's first block.
        salt, token_bytes: Kept to verify hits, because digests can collide.
        holders: Block ids with these contents, oldest first, and their groups of layers (0 if there is one group).
            Sequences that compute the same prompt at the same time fill several; the others outlive an eviction.
    """

    digest: bytes
    parent: "CachedPrefix | None"
    salt: str
    token_bytes: bytes
    holders: dict[int, int] = field(default_factory=dict)

    def is_prefix(self, parent: "CachedPrefix | None", salt: str, token_bytes: bytes) -> bool:
        """Whether these are the wanted contents. The parent, itself verified, stands for all blocks before it."""
        return self.token_bytes == token_bytes and self.parent is parent and self.salt == salt


class PrefixCache:
    """Digest -> contents -> blocks. Knows nothing of the tables that use a block. Only an allocator calls it.

    A `CachedPrefix` lives while a block holds its contents, or a child or a table refers to it. It keeps its parent
    alive, so comparing parents by identity is exact.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._by_digest: WeakValueDictionary[bytes, CachedPrefix] = WeakValueDictionary()
        self._of_block: dict[int, CachedPrefix] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._of_block

    def lookup(self, keys: Sequence[BlockKey], salt: str) -> tuple[list[int], CachedPrefix | None]:
        """Blocks of the longest cached prefix of these keys, and the contents of its last block."""
        block_ids, last = [], None
        for found in self.known(keys, salt):
            if not found.holders:
                break
            block_ids.append(next(reversed(found.holders)))  # the newest block, because the oldest is evicted first
            last = found
        return block_ids, last

    def known(self, keys: Sequence[BlockKey], salt: str) -> Iterator[CachedPrefix]:
        """The contents for the first keys, up to the first key that is unknown or not verified; with blocks or not."""
        parent: CachedPrefix | None = None
        for digest, token_bytes in keys:
            found = self._by_digest.get(digest)
            if found is None or not found.is_prefix(parent, salt, token_bytes):
                return
            yield found
            parent = found

    def extend_keys(self, keys: list[BlockKey], token_ids: Sequence[int], salt: str, num_blocks: int) -> None:
        """Add the missing keys of the first `num_blocks` full blocks of `token_ids`."""
        for index in range(len(keys), num_blocks):
            token_bytes = tokens_to_bytes(token_ids[index * self.block_size : (index + 1) * self.block_size])
            parent_digest = keys[-1].digest if keys else salt_digest(salt)
            keys.append(BlockKey(block_digest(parent_digest, token_bytes), token_bytes))

    def key_of(self, block_id: int) -> BlockKey | None:
        """The key of a published block; None for other blocks."""
        if (prefix := self._of_block.get(block_id)) is None:
            return None
        return BlockKey(prefix.digest, prefix.token_bytes).of_group(prefix.holders[block_id])

    def register(
        self, holders: Mapping[int, int], token_ids: Sequence[int], parent: CachedPrefix | None, salt: str
    ) -> CachedPrefix | None:
        """Publish `holders`, full blocks of the same tokens; if empty, only a parent for later blocks. Returns their
        contents; None, and no change, if their digest collides with other contents."""
        token_bytes = tokens_to_bytes(token_ids)
        digest = block_digest(parent.digest if parent else salt_digest(salt), token_bytes)
        prefix = self._by_digest.get(digest)
        if prefix is None:
            prefix = self._by_digest[digest] = CachedPrefix(digest, parent, salt, token_bytes)
        elif not prefix.is_prefix(parent, salt, token_bytes):
            return None
        prefix.holders.update(holders)
        self._of_block.update(dict.fromkeys(holders, prefix))
        return prefix

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten. Others with the same contents stay findable."""
        prefix = self._of_block.pop(block_id, None)
        if prefix is not None:
            del prefix.holders[block_id]

    def clear(self) -> None:
        """Forget every block. Nothing else refers to a prefix when no table is open."""
        self._of_block.clear()
