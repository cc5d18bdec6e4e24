"""Bytes for people: GB are powers of ten, as makers of memory count; GiB are powers of two, as allocators do."""

import re
from fractions import Fraction

GB = 10**9
GIB = 2**30

BYTES = {
    "": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": GB,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": GIB,
    "TiB": 2**40,
}

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)")


def bytes_of(text: str) -> int:
    """Bytes of '80 GB', '512 MiB' or '1073741824'; fractions of a byte are dropped.

    Raises:
        ValueError: It is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in BYTES:
        raise ValueError(f"{text!r} is no size such as 80 GB or 74.5 GiB")
    return int(Fraction(match[1]) * BYTES[match[2]])


def in_both(num_bytes: int | float) -> str:
    """'16.06 GB (14.96 GiB)'."""
    return f"{num_bytes / GB:,.2f} GB ({num_bytes / GIB:,.2f} GiB)"
