"""How many tiles of the query-key square a prefill kernel loads, and how many of those need a mask."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TileCounts:
    """`all` tiles of the rectangle chunk x keys; those `loaded`; those of them that are not seen whole by every row."""

    all: int
    loaded: int
    masked: int


def count_tiles(num_cached: int, chunk_len: int, block_q: int, block_n: int) -> TileCounts:
    """For one chunk and one KV head, with query blocks of `block_q` tokens and tiles of `block_n` keys."""
    seq_len = num_cached + chunk_len
    loaded = masked = 0
    firsts = range(0, chunk_len, block_q)
    for first in firsts:
        hi = min(num_cached + first + block_q, seq_len)
        num_tiles = -(-hi // block_n)
        loaded += num_tiles
        masked += num_tiles - (num_cached + first + 1) // block_n
    return TileCounts(len(firsts) * -(-seq_len // block_n), loaded, masked)
