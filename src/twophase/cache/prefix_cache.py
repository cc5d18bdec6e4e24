"""Finding blocks whose K/V were already computed, by what stands in them and everything before it."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """One full block's contents, and the blocks that hold them. Only `PrefixCache` changes it.

    Attributes:
        digest: Chained over the salt, all blocks before this one, and this one.
        parent: What stands before it; None for a sequence's first block.
        salt, token_bytes: Kept to verify hits, for digests can collide.
        block_ids: Every block with these contents, oldest first (a dict as an ordered set): two sequences that
            compute the same prompt at the same time make two, and evicting one must leave the other findable.
    """

    digest: bytes
    parent: "CachedPrefix | None"
    salt: str
    token_bytes: bytes
    block_ids: dict[int, None] = field(default_factory=dict)

    def is_prefix(self, parent: "CachedPrefix | None", salt: str, token_bytes: bytes) -> bool:
        """Whether this really is what was looked for. The parent, itself verified, stands for all that precedes."""
        return self.token_bytes == token_bytes and self.parent is parent and self.salt == salt


class PrefixCache:
    """Digest -> contents -> blocks. Knows nothing of who uses a block. Only `CacheManager` calls it.

    Invariant: a prefix's parent is findable as long as the prefix is, so comparing parents by identity is exact.
    It holds because tables free their blocks last first, so that children are evicted before their parents.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._by_digest: dict[bytes, CachedPrefix] = {}
        self._of_block: dict[int, CachedPrefix] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._of_block

    def lookup(self, token_ids: Sequence[int], salt: str, max_blocks: int) -> tuple[list[int], CachedPrefix | None]:
        """Blocks that hold the longest known prefix of `token_ids`, at most `max_blocks`, and the last one's prefix."""
        block_ids: list[int] = []
        prefix: CachedPrefix | None = None
        digest = salt_digest(salt)
        for index in range(max_blocks):
            token_bytes = tokens_to_bytes(token_ids[index * self.block_size : (index + 1) * self.block_size])
            digest = block_digest(digest, token_bytes)
            found = self._by_digest.get(digest)
            if found is None or not found.is_prefix(prefix, salt, token_bytes):
                break
            block_ids.append(next(reversed(found.block_ids)))  # the newest: the oldest is the next to be evicted
            prefix = found
        return block_ids, prefix

    def register(
        self, block_id: int, token_ids: Sequence[int], parent: CachedPrefix | None, salt: str
    ) -> CachedPrefix | None:
        """Make a full, written block findable. None if its digest collides with other contents: then it is not."""
        token_bytes = tokens_to_bytes(token_ids)
        digest = block_digest(parent.digest if parent else salt_digest(salt), token_bytes)
        prefix = self._by_digest.get(digest)
        if prefix is None:
            prefix = self._by_digest[digest] = CachedPrefix(digest, parent, salt, token_bytes)
        elif not prefix.is_prefix(parent, salt, token_bytes):
            return None
        prefix.block_ids[block_id] = None
        self._of_block[block_id] = prefix
        return prefix

    def forget(self, block_id: int) -> None:
        """The block is about to be overwritten. Others with the same contents stay findable."""
        prefix = self._of_block.pop(block_id, None)
        if prefix is None:
            return
        del prefix.block_ids[block_id]
        if not prefix.block_ids:
            del self._by_digest[prefix.digest]

    def clear(self) -> None:
        self._by_digest.clear()
        self._of_block.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless both maps agree and every prefix's parent is findable."""
        listed = {block_id: prefix for prefix in self._by_digest.values() for block_id in prefix.block_ids}
        assert listed == self._of_block, f"blocks by digest {listed} and by id {self._of_block} differ"
        for digest, prefix in self._by_digest.items():
            assert prefix.digest == digest, f"prefix filed under a foreign digest: {prefix}"
            assert prefix.block_ids, f"prefix without a block: {prefix}"
            parent = prefix.parent
            assert parent is None or self._by_digest.get(parent.digest) is parent, f"parent forgotten: {prefix}"
