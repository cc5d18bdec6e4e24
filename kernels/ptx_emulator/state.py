"""Registers of all threads of some blocks: one numpy array per PTX register, one entry per thread.

Threads of all blocks lie side by side ('lanes'): block after block, within a block in order of their number. One numpy
operation executes an instruction for all of them.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ptx_emulator.errors import NotCoveredError
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.numbers import UNSIGNED, bits_of, decode, encode, widen
from ptx_emulator.ptx import Address, Instruction, Literal, Operand, Program, Register

WARP = 32


class Asynchronous(Protocol):
    """Work that was started and is finished at a wait, for a choice of the entries that it was added with."""

    def finish(self, state: "State", chosen: np.ndarray) -> None: ...


RUNNING, AT_BARRIER, RETRY = 0, 1, 2
FINISHED = np.iinfo(np.int64).max  # in place of a group's number


class InFlight:
    """Asynchronous work in groups, as cp.async and wgmma commit and await it; each warp counts its own groups."""

    def __init__(self, num_warps: int) -> None:
        self._num_groups = np.zeros(num_warps, np.int64)
        self.work: list[tuple[Asynchronous, np.ndarray, np.ndarray]] = []  # with warp and group of its entries

    def add(self, work: Asynchronous, warps: np.ndarray) -> None:
        self.work.append((work, warps, self._num_groups[warps]))

    def commit(self, warps: np.ndarray | slice) -> None:
        self._num_groups[warps] += 1

    def wait(self, state: "State", keep: int) -> None:
        """Finish all but the newest `keep` groups of the active warps, oldest first."""
        due = np.full(len(self._num_groups), -1)
        warps = state.active_warps()
        due[warps] = self._num_groups[warps] - keep
        waiting = []
        for work, owners, groups in self.work:
            chosen = groups < due[owners]
            if chosen.any():
                work.finish(state, chosen)
                groups = np.where(chosen, FINISHED, groups)
            if (groups != FINISHED).any():
                waiting.append((work, owners, groups))
        self.work = waiting


class Observer:
    """Is told of each memory request and matrix product; this one ignores them."""

    def access(
        self,
        state: "State",
        instruction: Instruction,
        lanes: np.ndarray | slice,
        addresses: np.ndarray,
        num_bytes: int,
        is_global: bool,
    ) -> None:
        """These lanes access `num_bytes` each, in global memory or in shared memory."""

    def copy(self, state: "State") -> None:
        """An asynchronous copy was issued."""

    def product(self, flops: int) -> None:
        """Matrix instructions of all their warps."""


GARBAGE = 0xDEADBEEFDEADBEEF  # an unwritten register's value; no result may depend on it


def garbage(dtype: np.dtype) -> np.generic:
    return dtype.type(GARBAGE & (1 << 8 * dtype.itemsize) - 1)


Reader = Callable[["State"], np.ndarray]
Execute = Callable[["State"], None]
Builder = Callable[[Instruction], Execute]


class State:
    """The state of registers and memory that an instruction works on.

    Attributes:
        active: The executing lanes, or None for all lanes.
        block_of, warp_of, thread_of: Per lane: its block's index among these blocks, its warp, and its number in the
            block.
        warp_id: Per lane, its warp's number through all these blocks.
        stalled: Per warp (through all blocks): RUNNING, AT_BARRIER, or RETRY, which is to try its instruction again.
        meetings: By block, number and size of a barrier: what those who came know, and who waits there.
        mbarriers: By block and address.
        new_maps: Block and address of tensor maps that no fence.proxy.tensormap has made visible to bulk copies.
        landing: Bulk copies into shared memory, on their way.
        number_of: Per lane, its block's number in the grid, x fastest.
        block_ids: int64 [blocks, 3], each block's (x, y, z) in the grid.
        is_fenced, unfenced: Was there a wgmma.fence, and registers used since the last one, by which lanes (None: all);
            without the next one a matrix product of these may not touch them.
    """

    def __init__(
        self,
        program: Program,
        block_ids: np.ndarray,
        grid: tuple[int, int, int],
        parameters: dict[str, int],
        memory: GlobalMemory,
        shared: SharedMemory,
        observer: Observer | None = None,
    ) -> None:
        self.num_threads = program.num_threads
        self.num_blocks = len(block_ids)
        self.num_lanes = self.num_threads * self.num_blocks
        self.block_ids, self.grid = block_ids, grid
        self.parameters, self.memory, self.shared = parameters, memory, shared
        self.observer = observer or Observer()
        lanes = np.arange(self.num_lanes)
        self._special: dict[str, np.ndarray] = {}
        numbers = block_ids[:, 0] + grid[0] * (block_ids[:, 1] + grid[1] * block_ids[:, 2])
        self.block_of, self.thread_of = lanes // self.num_threads, lanes % self.num_threads
        self.warp_of, self.number_of = self.thread_of // WARP, numbers[self.block_of]
        self.active: np.ndarray | None = None
        self.registers: dict[str, np.ndarray] = {}
        self.warp_id = lanes // WARP
        num_warps = max(1, self.num_lanes // WARP)
        self.copies, self.products, self.bulk_stores = (InFlight(num_warps) for _ in range(3))
        self.stalled = np.zeros(num_warps, np.int8)
        self.meetings: dict[tuple[int, int, int], tuple[np.ndarray, list[int], int]] = {}
        self.mbarriers: dict[tuple[int, int], Any] = {}
        self.landing: list[Any] = []
        self.new_maps: set[tuple[int, int]] = set()
        self.is_fenced = False
        self.unfenced: dict[str, np.ndarray | None] = {}
        self.sums: dict[str, np.ndarray] = {}  # of matrix products in flight: the registers' future values
        self.unfinished: dict[str, np.ndarray] = {}  # and how many products each lane of them still waits for

    def write(self, register: Operand, bits: np.ndarray) -> None:
        """Assign to the active lanes of a register; '_' throws the value away. `bits` is not copied, nor changed."""
        name = register.name
        if name == "_":
            return
        if bits.ndim == 0:
            bits = np.full(self.num_lanes, bits)
        if self.active is not None:
            old = self.registers.get(name)
            bits = np.where(self.active, bits, garbage(bits.dtype) if old is None else old)
        self.registers[name] = bits
        self.unfenced[name] = self.active

    def overlaps(self, lanes: np.ndarray | None) -> bool:
        """Whether one of these lanes (None: all) is active."""
        return lanes is None or self.active is None or bool((lanes & self.active).any())

    def write_active(self, register: Operand, lanes: np.ndarray | slice, column: np.ndarray) -> None:
        """Assign one entry per active lane; `lanes` are `active_lanes()`."""
        if self.active is not None:
            whole = np.zeros(self.num_lanes, column.dtype)
            whole[lanes] = column
            column = whole
        self.write(register, column)

    def active_lanes(self) -> np.ndarray | slice:
        """An index that selects the active lanes."""
        return slice(None) if self.active is None else np.flatnonzero(self.active)

    def active_warps(self) -> np.ndarray:
        """Numbers, through all blocks, of the warps with an active lane."""
        if self.active is None:
            return np.arange(len(self.stalled))
        return np.unique(self.warp_id[self.active])

    def per_lane(self, values: np.ndarray) -> np.ndarray:
        """An operand, which may be one number for all, with an entry per lane."""
        return values if values.ndim else np.broadcast_to(values, self.num_lanes)

    def special(self, name: str) -> np.ndarray:
        """%tid, %ntid, %ctaid, %nctaid, %laneid, %warpid as u32."""
        if name not in self._special:
            self._special[name] = self._compute_special(name)
        return self._special[name]

    def _compute_special(self, name: str) -> np.ndarray:
        stem, _, axis = name.partition(".")
        along = "xyz".index(axis) if axis else 0
        if stem == "%tid":
            values = self.thread_of if along == 0 else np.zeros_like(self.thread_of)
        elif stem == "%ntid":
            values = np.full(self.num_lanes, self.num_threads if along == 0 else 1)
        elif stem == "%ctaid":
            values = self.block_ids[self.block_of, along]
        elif stem == "%nctaid":
            values = np.full(self.num_lanes, self.grid[along])
        elif stem == "%laneid":
            values = self.thread_of % WARP
        elif stem == "%warpid":
            values = self.warp_of
        else:
            raise NotCoveredError(f"the special register {name}")
        return values.astype(np.uint32)


def reader(operand: Operand, kind: str) -> Reader:
    """A function that fetches an operand as numbers of type `kind` (an array, or a scalar for a literal)."""
    bits = bits_of(kind)
    if isinstance(operand, Literal):
        value = np.array([operand.value & (1 << bits) - 1]).astype(UNSIGNED[bits])
        constant = decode(value, kind)[0]
        return lambda state: constant
    if not isinstance(operand, Register):
        raise NotCoveredError(f"{operand} as a value")
    name = operand.name
    if name == "WARP_SZ":
        return lambda state: np.uint32(WARP)
    if name == "global_smem":  # where shared memory starts
        zero = np.zeros((), UNSIGNED[bits])
        return lambda state: zero
    if name.startswith(("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid")):
        return lambda state: state.special(name)
    if not operand.bits and "_param_" in name:  # its address: of a tensor map that the host made
        return lambda state: np.uint64(state.parameters[name])
    if not operand.bits:
        raise NotCoveredError(f"the register {name}")
    missing, unit = garbage(np.dtype(UNSIGNED[operand.bits])), UNSIGNED[bits]

    def fetch(state: State) -> np.ndarray:
        state.unfenced[name] = state.active
        value = state.registers.get(name)
        if value is None:
            value = np.full(state.num_lanes, missing)
        return decode(value.astype(unit, copy=False), kind)  # a narrower type takes the lower bits (ld.b8 into b16)

    return fetch


def address_reader(operand: Operand) -> Reader:
    """Addresses in bytes: uint64 for global memory, and as good for shared memory."""
    if not isinstance(operand, Address):
        raise NotCoveredError(f"{operand} as an address")
    fetch, offset = reader(operand.base, f"u{operand.base.bits or 64}"), np.uint64(operand.offset & (1 << 64) - 1)
    return lambda state: state.per_lane(fetch(state).astype(np.uint64, copy=False) + offset)


def writer(register: Operand, kind: str) -> Callable[[State, np.ndarray], None]:
    """A function that assigns numbers of type `kind` to a register, filled up by sign or zeros."""
    held = register.bits or bits_of(kind)
    return lambda state, numbers: state.write(register, widen(encode(np.asarray(numbers), kind), kind, held))
