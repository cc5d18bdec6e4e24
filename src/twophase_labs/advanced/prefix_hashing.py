"""What a chain of block hashes is made of."""

import hashlib
from array import array
from collections.abc import Sequence


def digest(data: bytes) -> bytes:
    """16 bytes that stand for any number of bytes: BLAKE2b. The same in every process and on every machine."""
    return hashlib.blake2b(data, digest_size=16).digest()


def as_bytes(token_ids: Sequence[int]) -> bytes:
    """8 bytes for each token id."""
    return array("q", token_ids).tobytes()
