"""Counts a kernel's memory traffic as a GPU's memory system would see it: one request per warp.

Global memory is moved in sectors of 32 bytes: a request moves each sector that one of its threads touches, once (CUDA
C++ Best Practices Guide, 'Coalesced Access to Global Memory').

Shared memory has 32 banks of 4 bytes, and a bank serves one word at a time, to any number of threads (CUDA C++
Programming Guide, 'Shared Memory' of compute capability 5.x, which later ones refer to). Accesses of 8 and of 16 bytes
per thread are served for half a warp and for a quarter of one after the other, ldmatrix a matrix of 8 rows of 16 bytes
after the other. Each part takes as many passes ('wavefronts') as the busiest bank has words to give. wgmma reads shared
memory by itself and is not counted.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ptx_emulator.ptx import Instruction
from ptx_emulator.state import FINISHED, WARP, Observer, State

SECTOR = 32
NUM_BANKS, BANK_BYTES = 32, 4

Key = tuple[str, str, int]  # source, instruction, bytes per thread


@dataclass(frozen=True)
class GlobalAccess:
    """All memory requests by one kind of instruction from one line of Python.

    Attributes:
        source: 'attend_range.py:146'.
        instruction: Such as 'ld.global.v4.b32'.
        thread_bytes: Bytes per thread and instruction.
        requests: Requests by warps, with at least one thread taking part.
        sectors: Sectors moved by all requests.
        least_sectors: Sectors if each request's bytes were contiguous and aligned to a sector.
        bytes_asked: Different bytes in each request, summed up.
        example: The first such instruction in its first block: (warp, address) of each thread that took part, the
            address in bytes from the first sector on.
    """

    source: str
    instruction: str
    thread_bytes: int
    requests: int
    sectors: int
    least_sectors: int
    bytes_asked: int
    example: tuple[tuple[int, int], ...] = ()

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests

    @property
    def least_per_request(self) -> float:
        return self.least_sectors / self.requests

    @property
    def bytes_moved(self) -> int:
        return self.sectors * SECTOR

    @property
    def efficiency(self) -> float:
        """1: no request could do with fewer sectors."""
        return self.least_sectors / self.sectors

    @property
    def is_store(self) -> bool:
        return self.instruction.startswith(("st", "red"))


@dataclass(frozen=True)
class SharedAccess:
    """As `GlobalAccess`. `least_wavefronts`: one for each part of a warp that is served by itself."""

    source: str
    instruction: str
    thread_bytes: int
    requests: int
    wavefronts: int
    least_wavefronts: int

    @property
    def conflicts(self) -> int:
        """Wavefronts too many."""
        return self.wavefronts - self.least_wavefronts


class Traffic(Observer):
    """Counts the traffic of a `Machine` that it observes.

    Attributes:
        matrix_flops: Additions and multiplications of mma and wgmma.
        bytes_in_flight: The largest number of bytes in flight by cp.async in one block.
    """

    def __init__(self) -> None:
        self._examples: dict[Key, tuple[tuple[int, int], ...]] = {}
        self._global: dict[Key, np.ndarray] = defaultdict(lambda: np.zeros(4, np.int64))
        self._shared: dict[Key, np.ndarray] = defaultdict(lambda: np.zeros(3, np.int64))
        self.matrix_flops = 0
        self.bytes_in_flight = 0

    @property
    def global_accesses(self) -> tuple[GlobalAccess, ...]:
        counted = ((key, counts) for key, counts in self._global.items() if counts[0])
        found = (GlobalAccess(*key, *map(int, counts), self._examples[key]) for key, counts in counted)
        return tuple(sorted(found, key=_place))

    @property
    def shared_accesses(self) -> tuple[SharedAccess, ...]:
        found = (SharedAccess(*key, *map(int, counts)) for key, counts in self._shared.items() if counts[0])
        return tuple(sorted(found, key=_place))

    def access(
        self,
        state: State,
        instruction: Instruction,
        lanes: np.ndarray | slice,
        addresses: np.ndarray,
        num_bytes: int,
        is_global: bool,
    ) -> None:
        words = [m for m in instruction.modifiers if not m.startswith(("L1::", "L2::", "level"))]
        key = instruction.source, ".".join([instruction.name, *words]), num_bytes
        count = self._count_global if is_global else self._count_shared
        count(key, state, np.arange(state.num_lanes)[lanes], addresses)

    def copy(self, state: State) -> None:
        waiting = np.zeros(state.num_blocks)
        for copy, warps, groups in state.copies.work:
            waiting += np.bincount(
                warps * WARP // state.num_threads, np.where(groups == FINISHED, 0, copy.sizes), state.num_blocks
            )
        self.bytes_in_flight = max(self.bytes_in_flight, int(waiting.max()))

    def product(self, flops: int) -> None:
        self.matrix_flops += flops

    def _count_global(self, key: Key, state: State, lanes: np.ndarray, addresses: np.ndarray) -> None:
        """Every access is aligned to its size, of at most 32 bytes: it lies in one sector."""
        warps, places = lanes // WARP, addresses.astype(np.int64)
        items = _distinct(warps, places)
        least = -(-np.bincount(items) * key[2] // SECTOR)
        requests, sectors = np.count_nonzero(least), len(_distinct(warps, places // SECTOR))
        self._global[key] += (requests, sectors, least.sum(), len(items) * key[2])
        if key not in self._examples and len(lanes):
            mine = state.block_of[lanes] == state.block_of[lanes[0]]
            offsets = places[mine] - places[mine].min() // SECTOR * SECTOR
            self._examples[key] = tuple(zip(state.warp_of[lanes[mine]].tolist(), offsets.tolist(), strict=True))

    def _count_shared(self, key: Key, state: State, lanes: np.ndarray, addresses: np.ndarray) -> None:
        if len(lanes) == 0:
            return
        parts = lanes // (WARP // max(1, key[2] // BANK_BYTES))
        # Accesses are aligned to their size, so that two conflict in their first words or in none.
        words = addresses.astype(np.int64) // BANK_BYTES
        # Different words of each part, then how many of them each bank has.
        part_and_word = np.unique(parts << 32 | words)
        part_and_bank, busy = np.unique(
            (part_and_word >> 32) * NUM_BANKS + part_and_word % NUM_BANKS, return_counts=True
        )
        parts_here, first = np.unique(part_and_bank // NUM_BANKS, return_index=True)
        wavefronts = np.maximum.reduceat(busy, first).sum()
        self._shared[key] += (len(np.unique(lanes // WARP)), wavefronts, len(parts_here))


def _distinct(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The groups of all different pairs (group, value)."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    is_first = np.ones(len(groups), bool)
    is_first[1:] = (groups[1:] != groups[:-1]) | (values[1:] != values[:-1])
    return groups[is_first]


def _place(access: GlobalAccess | SharedAccess) -> tuple[str, int, str]:
    file, _, line = access.source.rpartition(":")
    return file, int(line or 0), access.instruction
