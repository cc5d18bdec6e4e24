"""Random numbers without a state: Philox4x32-10, a counter-based generator.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.4. A draw is a function
of (seed, completion index, output position) and of nothing else, so it cannot depend on which requests share a batch,
on chunking, or on preemption.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt32

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_NUM_ROUNDS = 10
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)


def philox4x32(counter: UInt32[np.ndarray, "4 B"], key: UInt32[np.ndarray, "2 B"]) -> UInt32[np.ndarray, "4 B"]:
    """Four random 32-bit words for each of B (counter, key) pairs.

    Worked example (the authors' test vector): counter and key all zero give 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    with np.errstate(over="ignore"):  # the key schedule wraps around on purpose
        for _ in range(_NUM_ROUNDS):
            high0, low0 = _multiply(_MULTIPLIERS[0], c0)
            high1, low1 = _multiply(_MULTIPLIERS[1], c2)
            c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
            k0, k1 = k0 + _KEY_INCREMENTS[0], k1 + _KEY_INCREMENTS[1]
    return np.stack([c0, c1, c2, c3])


def uniforms(seeds: Sequence[int], indices: Sequence[int], positions: Sequence[int]) -> Float64[np.ndarray, "B"]:
    """One uniform in [0, 1) with 53 random bits for each (seed, completion index, output position).

    The key is the seed, the counter (position, index, 0, 0). All values are >= 0; seeds below 2**64, positions and
    indices below 2**32.
    """
    seed_low = np.array([seed & 0xFFFFFFFF for seed in seeds], dtype=np.uint32)
    seed_high = np.array([seed >> 32 for seed in seeds], dtype=np.uint32)
    zeros = np.zeros_like(seed_low)
    counter = np.stack([np.array(positions, np.uint32), np.array(indices, np.uint32), zeros, zeros])
    words = philox4x32(counter, np.stack([seed_low, seed_high])).astype(np.uint64)
    bits = words[0] << np.uint64(21) | words[1] >> np.uint64(11)
    return bits * 2.0**-53


def _multiply(
    multiplier: np.uint64, x: UInt32[np.ndarray, "B"]
) -> tuple[UInt32[np.ndarray, "B"], UInt32[np.ndarray, "B"]]:
    """High and low words of the 64-bit product."""
    product = x.astype(np.uint64) * multiplier
    return (product >> _SHIFT_32).astype(np.uint32), (product & _LOW_32).astype(np.uint32)
