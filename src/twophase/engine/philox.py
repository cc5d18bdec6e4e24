"""Random numbers without a state: Philox4x32-10, a counter-based generator.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.4. A draw is a function of
(seed, completion index, output position) and of nothing else, so it cannot depend on batches, chunking or preemption.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt32

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)  # of words 0 and 2
KEY_INCREMENTS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
NUM_ROUNDS = 10


def philox4x32(counter: UInt32[np.ndarray, "4 B"], key: UInt32[np.ndarray, "2 B"]) -> UInt32[np.ndarray, "4 B"]:
    """Four random 32-bit words for each of B (counter, key) pairs.

    Worked example (the authors' test vector): counter and key all zero give 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    """
    for _ in range(NUM_ROUNDS):
        products = counter[::2] * MULTIPLIERS  # 64 bits
        high, low = (products >> 32).astype(np.uint32), products.astype(np.uint32)
        mixed = high[::-1] ^ counter[1::2] ^ key
        counter = np.stack([mixed[0], low[1], mixed[1], low[0]])
        key = key + KEY_INCREMENTS  # wraps around on purpose
    return counter


def uniforms(seeds: Sequence[int], indices: Sequence[int], positions: Sequence[int]) -> Float64[np.ndarray, "B"]:
    """One uniform in [0, 1) with 53 random bits for each (seed, completion index, output position).

    The key is the seed, in [0, 2**64), the counter (position, index, 0, 0), both in [0, 2**32).
    """
    key = np.array([[seed & 0xFFFFFFFF for seed in seeds], [seed >> 32 for seed in seeds]], np.uint32)
    zeros = [0] * len(seeds)
    words = philox4x32(np.array([positions, indices, zeros, zeros], np.uint32), key).astype(np.uint64)
    return (words[0] << np.uint64(21) | words[1] >> np.uint64(11)) * 2.0**-53
