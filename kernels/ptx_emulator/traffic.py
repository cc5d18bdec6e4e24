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
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ptx_emulator.machine import BUILDERS, Builder, Execute
from ptx_emulator.numbers import bits_of
from ptx_emulator.ptx import Instruction, Literal, Operand
from ptx_emulator.state import WARP, State, address_reader, reader

SECTOR = 32
NUM_BANKS, BANK_BYTES = 32, 4
WARPGROUP = 4 * WARP

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


class Traffic:
    """Counts the traffic of a `Machine` made with its `builders`.

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
        self._copies = _CopiesUnderWay()

    @property
    def global_accesses(self) -> tuple[GlobalAccess, ...]:
        counted = ((key, counts) for key, counts in self._global.items() if counts[0])
        found = (GlobalAccess(*key, *map(int, counts), self._examples[key]) for key, counts in counted)
        return tuple(sorted(found, key=_place))

    @property
    def shared_accesses(self) -> tuple[SharedAccess, ...]:
        found = (SharedAccess(*key, *map(int, counts)) for key, counts in self._shared.items() if counts[0])
        return tuple(sorted(found, key=_place))

    @property
    def builders(self) -> Mapping[str, Builder]:
        """`BUILDERS`, whose instructions are counted, and then executed."""
        return {name: self._counting(builder) for name, builder in BUILDERS.items()}

    def _counting(self, builder: Builder) -> Builder:
        def build(instruction: Instruction, widths: dict[str, int]) -> Execute:
            execute, observe = builder(instruction, widths), self._observe(instruction, widths)
            if observe is None:
                return execute

            def counted(state: State) -> None:
                observe(state)
                execute(state)

            return counted

        return build

    def _observe(self, instruction: Instruction, widths: dict[str, int]) -> Execute | None:
        """The function that counts this instruction, or None."""
        name, modifiers = instruction.name, instruction.modifiers
        if name in ("ld", "st", "atom", "red") and "param" not in modifiers:
            return self._access(instruction, widths)
        if name == "cp" and "async" in modifiers:
            return self._copy(instruction, widths)
        if name in ("ldmatrix", "stmatrix"):
            return self._matrix_access(instruction, widths)
        if name == "mma" or (name == "wgmma" and "mma_async" in modifiers):
            return self._product(instruction)
        return None

    def _access(self, instruction: Instruction, widths: dict[str, int]) -> Execute:
        operands = instruction.operands
        where, value = (operands[1], operands[0]) if instruction.name in ("ld", "atom") else operands[:2]
        address, num_bytes = address_reader(where, widths), bits_of(instruction.modifiers[-1]) // 8 * _length(value)
        key = _key(instruction, num_bytes)
        count = self._count_global if "global" in instruction.modifiers else self._count_shared

        def observe(state: State) -> None:
            lanes = _active_lanes(state)
            count(key, state, lanes, address(state)[lanes])

        return observe

    def _copy(self, instruction: Instruction, widths: dict[str, int]) -> Execute | None:
        if "commit_group" in instruction.modifiers:
            return lambda state: self._copies.commit(state)
        if "wait_group" in instruction.modifiers or "wait_all" in instruction.modifiers:
            keep = instruction.operands[0].value if instruction.operands else 0
            return lambda state: self._copies.wait(state, keep)
        to, source, size, *rest = instruction.operands
        if not isinstance(size, Literal):
            return None
        target, address = address_reader(to, widths), address_reader(source, widths)
        wanted = reader(rest[0], "u32", widths) if rest else None
        key = _key(instruction, size.value)

        def observe(state: State) -> None:
            lanes = _active_lanes(state)
            self._count_shared(key, state, lanes, target(state)[lanes])
            if wanted is not None:  # a thread that wants 0 bytes writes zeros and reads nothing
                lanes = lanes[np.broadcast_to(wanted(state), state.num_lanes)[lanes] != 0]
            self._count_global(key, state, lanes, address(state)[lanes])
            self._copies.issue(state, lanes, size.value)
            self.bytes_in_flight = max(self.bytes_in_flight, self._copies.most)

        return observe

    def _matrix_access(self, instruction: Instruction, widths: dict[str, int]) -> Execute:
        registers, where = instruction.operands if instruction.name == "ldmatrix" else instruction.operands[::-1]
        address, rows = address_reader(where, widths), 8 * _length(registers)
        key = _key(instruction, 16)

        def observe(state: State) -> None:
            lanes = _active_lanes(state)
            lanes = lanes[lanes % WARP < rows]
            self._count_shared(key, state, lanes, address(state)[lanes])

        return observe

    def _product(self, instruction: Instruction) -> Execute:
        shape = next(m for m in instruction.modifiers if m[0] == "m" and "n" in m and "k" in m)
        m, n, k = map(int, shape[1:].replace("n", " ").replace("k", " ").split())
        threads = WARPGROUP if instruction.name == "wgmma" else WARP

        def observe(state: State) -> None:
            self.matrix_flops += 2 * m * n * k * (len(_active_lanes(state)) // threads)

        return observe

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


class _CopiesUnderWay:
    """Bytes of asynchronous copies that each block has not waited for, in groups."""

    def __init__(self) -> None:
        self._state: State | None = None
        self.most = 0

    def issue(self, state: State, lanes: np.ndarray, num_bytes: int) -> None:
        self._begin(state)
        self._open += np.bincount(state.block_of[lanes], minlength=state.num_blocks) * num_bytes
        waiting = [self._open[block] + sum(groups) for block, groups in enumerate(self._groups)]
        self.most = int(max(waiting))

    def commit(self, state: State) -> None:
        self._begin(state)
        for block in np.arange(state.num_blocks)[state.blocks]:
            self._groups[block].append(int(self._open[block]))
            self._open[block] = 0

    def wait(self, state: State, keep: int) -> None:
        self._begin(state)
        for block in np.arange(state.num_blocks)[state.blocks]:
            groups = self._groups[block]
            del groups[: max(0, len(groups) - keep)]

    def _begin(self, state: State) -> None:
        if state is not self._state:
            self._state = state
            self._open = np.zeros(state.num_blocks, np.int64)
            self._groups: list[list[int]] = [[] for _ in range(state.num_blocks)]


def _active_lanes(state: State) -> np.ndarray:
    return np.arange(state.num_lanes) if state.active is None else np.flatnonzero(state.active)


def _distinct(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The groups of all different pairs (group, value)."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    is_first = np.ones(len(groups), bool)
    is_first[1:] = (groups[1:] != groups[:-1]) | (values[1:] != values[:-1])
    return groups[is_first]


def _key(instruction: Instruction, num_bytes: int) -> Key:
    words = [m for m in instruction.modifiers if not m.startswith(("L1::", "L2::", "level"))]
    return instruction.source, ".".join([instruction.name, *words]), num_bytes


def _length(operand: Operand) -> int:
    return len(operand) if isinstance(operand, tuple) else 1


def _place(access: GlobalAccess | SharedAccess) -> tuple[str, int, str]:
    file, _, line = access.source.rpartition(":")
    return file, int(line or 0), access.instruction
