"""Matrix instructions: ldmatrix and stmatrix, mma.sync of a warp, wgmma of four warps.

How fragments lie in registers: PTX ISA 9.7.14.5 (mma.m16n8k16, k32), 9.7.15.5 (wgmma). Products are summed in fp32.
"""

import itertools
import re
from dataclasses import dataclass

import numpy as np

from ptx_emulator.bulk import swizzled
from ptx_emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from ptx_emulator.numbers import UNSIGNED, bits_of, decode
from ptx_emulator.ptx import Instruction, Operand
from ptx_emulator.state import WARP, Execute, State, address_reader, reader
from ptx_emulator.warps import whole_warps

WARPGROUP = 4 * WARP
FLOAT8 = ("e4m3", "e5m2")
MULTIPLIED = {("f16", "f16"), ("bf16", "bf16"), *itertools.product(FLOAT8, FLOAT8)}


def load_matrices(instruction: Instruction) -> Execute:
    """ldmatrix: 8x8 matrices of 16-bit elements; threads 8i to 8i + 7 of a warp give the rows of matrix i."""
    targets, address, transposed = _matrix_operands(instruction, 0)

    def execute(state: State) -> None:
        whole_warps(state, "ldmatrix")
        warps = state.active_warps()
        rows = _row_lanes(warps, len(targets))
        places = address(state)[rows]
        state.observer.access(state, instruction, rows, places, 16, False)
        data = state.shared.load(places, state.warp_id[rows], 16)
        matrices = data.view(np.uint16).reshape(len(warps), len(targets), 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        fragments = np.ascontiguousarray(matrices.swapaxes(0, 1)).view(np.uint32)
        for target, values in zip(targets, fragments, strict=True):
            state.write(target, _spread(values.reshape(-1, WARP), warps, state))

    return execute


def store_matrices(instruction: Instruction) -> Execute:
    """stmatrix, the reverse."""
    sources, address, transposed = _matrix_operands(instruction, 1)
    fetch = [reader(source, "b32") for source in sources]

    def execute(state: State) -> None:
        whole_warps(state, "stmatrix")
        warps = state.active_warps()
        fragments = np.stack([state.per_lane(values(state)).reshape(-1, WARP)[warps] for values in fetch], 1)
        matrices = fragments.view(np.uint16).reshape(-1, 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 2, 1)
        rows = _row_lanes(warps, len(fetch))
        places = address(state)[rows]
        state.observer.access(state, instruction, rows, places, 16, False)
        data = np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, 16)
        state.shared.store(places, state.warp_id[rows], data)

    return execute


def _matrix_operands(instruction: Instruction, registers_at: int):
    if "m8n8" not in instruction.modifiers or instruction.modifiers[-1] != "b16":
        raise NotCoveredError(f"{instruction.name}.{'.'.join(instruction.modifiers)}")
    registers, where = instruction.operands[registers_at], instruction.operands[1 - registers_at]
    if not isinstance(registers, tuple):
        registers = (registers,)
    return registers, address_reader(where), "trans" in instruction.modifiers


def _row_lanes(warps: np.ndarray, num_matrices: int) -> np.ndarray:
    """The threads that give the rows' addresses."""
    return (warps[:, None] * WARP + np.arange(8 * num_matrices)).reshape(-1)


def _spread(values: np.ndarray, warps: np.ndarray, state: State) -> np.ndarray:
    """[active warps, 32] -> one entry per lane."""
    if len(warps) == state.num_lanes // WARP:
        return values.reshape(-1)
    whole = np.zeros((state.num_lanes // WARP, WARP), values.dtype)
    whole[warps] = values
    return whole.reshape(-1)


def multiply_accumulate(instruction: Instruction) -> Execute:
    """mma.sync.m16n8k16 and m16n8k8 of 16-bit floats, m16n8k32 of 8-bit ones: D = A B + C, for one warp."""
    _, kind_a, kind_b, _ = kinds = instruction.modifiers[-4:]
    shapes = {"m16n8k32"} if kind_a in FLOAT8 else {"m16n8k16", "m16n8k8"}
    if not shapes & set(instruction.modifiers) or kinds[::3] != ("f32", "f32") or (kind_a, kind_b) not in MULTIPLIED:
        raise NotCoveredError(f"mma.{'.'.join(instruction.modifiers)}")
    d, a, b, c = instruction.operands
    fetch_a, fetch_b = ([reader(r, "b32") for r in operand] for operand in (a, b))
    fetch_c = [reader(r, "f32") for r in c]

    def execute(state: State) -> None:
        whole_warps(state, "mma.sync")
        left = fragment_a([f(state) for f in fetch_a], kind_a, state.num_lanes)
        right = np.stack([_runs(f(state), kind_b, state.num_lanes) for f in fetch_b], 2)
        right = right.reshape(len(left), 8, -1)  # [warps, n, k]
        state.observer.product(2 * left.shape[2] * 16 * 8 * len(state.active_warps()))
        for target, values, addend in zip(d, fragments_c(left @ right.transpose(0, 2, 1)), fetch_c, strict=True):
            state.write(target, (values + addend(state)).view(np.uint32))

    return execute


def _runs(register: np.ndarray, kind: str, num_lanes: int) -> np.ndarray:
    """A register of e = 2 or 4 numbers of 32 bits together per thread -> fp32 [warps, 8 (g), 4 (q), e]."""
    whole = np.ascontiguousarray(register if register.ndim else np.broadcast_to(register, num_lanes))
    numbers = decode(whole.view(UNSIGNED[bits_of(kind)]), kind).astype(np.float32, copy=False)
    return numbers.reshape(-1, 8, 4, 32 // bits_of(kind))


def fragment_a(registers: list[np.ndarray], kind: str, num_lanes: int) -> np.ndarray:
    """A's registers -> fp32 [warps, 16, k]. Register i: row g + 8 * (i % 2), columns from eq on of k's half i // 2."""
    runs = np.stack([_runs(r, kind, num_lanes) for r in registers], 1)
    warps, count = runs.shape[:2]
    halves = runs.reshape(warps, count // 2, 2, 8, 4, -1)  # [warps, k half, row half, g, q, e]
    return halves.transpose(0, 2, 3, 1, 4, 5).reshape(warps, 16, -1)


def fragments_c(products: np.ndarray) -> np.ndarray:
    """[warps, 16, n] -> C's registers [n / 2, lanes]. Register i of thread (g, q): row g + 8 * (i // 2 % 2), column
    8 * (i // 4) + 2 q + i % 2."""
    warps, _, n = products.shape
    spread = products.reshape(warps, 2, 8, n // 8, 4, 2)  # warps, row half, g, column tile, q, 2
    return spread.transpose(3, 1, 5, 0, 2, 4).reshape(n // 2, -1)


# -- wgmma ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """An operand of wgmma in shared memory, as its 64-bit descriptor says (PTX ISA 9.7.15.5.1.2.2).

    `rows` x 32 bytes of elements of that `kind`, along k. Contiguous runs of up to 128 bytes lie along k, or, when
    `transposed` (of 16-bit elements), along the rows.
    """

    rows: int
    kind: str
    transposed: bool

    @property
    def element_bytes(self) -> int:
        return bits_of(self.kind) // 8

    @property
    def depth(self) -> int:
        return 32 // self.element_bytes

    def places(self, descriptors: np.ndarray) -> np.ndarray:
        """Addresses of the elements, int64 [descriptors, rows, depth]."""
        fields = descriptors.astype(np.uint64)[:, None, None]

        def field(first: int, bits: int) -> np.ndarray:
            return (fields >> np.uint64(first) & np.uint64((1 << bits) - 1)).astype(np.int64)

        start, leading, stride = (16 * field(first, 14) for first in (0, 16, 32))
        if field(49, 3).any():
            raise NotCoveredError("a matrix descriptor with a base offset")
        mode = np.unique(field(62, 2))
        if len(mode) != 1 or mode[0] == 0:
            raise NotCoveredError("a matrix descriptor without swizzling")
        span = 256 >> int(mode[0])  # bytes of a swizzled row: 128, 64 or 32
        i, k = np.arange(self.rows)[None, :, None], np.arange(self.depth)[None, None, :]
        if self.transposed:
            elements = span // 2
            offset = i // elements * leading + i % elements * 2 + k // 8 * stride + k % 8 * span
        else:
            offset = i // 8 * stride + i % 8 * span + k * self.element_bytes
        address = start + offset
        return swizzled(address, span)


def warpgroup_multiply(instruction: Instruction) -> Execute:
    """wgmma: fence, mma_async, commit_group, wait_group."""
    what = instruction.modifiers[0]
    if what == "fence":
        return _fence_registers
    if what == "commit_group":
        return lambda state: state.products.commit(state.active_warps())
    if what == "wait_group":
        keep = instruction.operands[0].value
        return lambda state: state.products.wait(state, keep)
    return _issue_product(instruction)


def _fence_registers(state: State) -> None:
    state.is_fenced = True
    masks = {id(lanes): lanes for lanes in state.unfenced.values()}
    fenced = {key for key, lanes in masks.items() if state.overlaps(lanes)}
    state.unfenced = {name: lanes for name, lanes in state.unfenced.items() if id(lanes) not in fenced}


def _issue_product(instruction: Instruction) -> Execute:
    to, kind_a, kind_b = instruction.modifiers[-3:]
    depth = 256 // bits_of(kind_a)
    shape = next((re.fullmatch(rf"m64n(\d+)k{depth}", m) for m in instruction.modifiers if m.startswith("m64")), None)
    if shape is None or to != "f32" or (kind_a, kind_b) not in MULTIPLIED:
        raise NotCoveredError(f"wgmma.{'.'.join(instruction.modifiers)}")
    d, a, b, keep_sum, *signs = instruction.operands
    a_in_registers = isinstance(a, tuple)
    if [s.value for s in signs[:2]] != [1, 1]:
        raise NotCoveredError("wgmma with a negated operand")
    transposed = [s.value == 1 for s in signs[2:]] or [False, False]
    left = [reader(r, "b32") for r in a] if a_in_registers else [reader(a, "b64")]
    tile_a, tile_b = Tile(64, kind_a, transposed[0]), Tile(int(shape[1]), kind_b, transposed[-1])
    right, keeps = reader(b, "b64"), reader(keep_sum, "pred")
    names = {register.name for register in (*d, *(a if a_in_registers else ()))}

    def execute(state: State) -> None:
        groups = _active_groups(state)
        used = state.unfenced.copy()
        product = Product(d, groups, state)
        if a_in_registers:
            rows = fragment_a([f(state) for f in left], kind_a, state.num_lanes).reshape(-1, 64, depth)[groups]
        else:
            rows = product.take(tile_a, _per_group(left[0](state), groups, state), state)
        columns = product.take(tile_b, _per_group(right(state), groups, state), state)
        if not state.is_fenced or any(state.overlaps(used[name]) for name in names & used.keys()):
            raise RaceError("a matrix product takes registers that threads used, with no wgmma.fence in between")
        product.add(rows @ columns.transpose(0, 2, 1), _per_group(keeps(state), groups, state), state)
        state.observer.product(2 * 64 * tile_b.rows * depth * len(groups))
        state.unfenced = used  # registers that products share are not used by threads
        state.products.add(product, product.warps)

    return execute


def _active_groups(state: State) -> np.ndarray:
    if state.active is None:
        return np.arange(state.num_lanes // WARPGROUP)
    active = state.active.reshape(-1, WARPGROUP)
    if (active != active[:, :1]).any():
        raise EmulationError("wgmma must be executed by whole warpgroups")
    return np.flatnonzero(active[:, 0])


def _per_group(values: np.ndarray, groups: np.ndarray, state: State) -> np.ndarray:
    """The common value of each warpgroup's threads."""
    per_group = state.per_lane(values).reshape(-1, WARPGROUP)[groups]
    if (per_group != per_group[:, :1]).any():
        raise EmulationError("the threads of a warpgroup disagree about an operand of wgmma")
    return per_group[:, 0]


class Product:
    """One wgmma on its way: its sum is garbage and its shared memory is in use until it is waited for.

    A GPU computes it at any time until then. It is computed at the issue here, for its operands must not change: shared
    memory in use refuses writes. The sums are set aside.
    """

    def __init__(self, targets: tuple[Operand, ...], groups: np.ndarray, state: State) -> None:
        self.targets = targets
        self.teams = groups[:, None] * 4 + np.arange(4)
        self.warps = self.teams.reshape(-1)  # each waits for itself
        self.lanes = self.warps[:, None] * WARP + np.arange(WARP)
        self.in_use: list[np.ndarray] = []
        self.num_waiting = np.full(len(groups), 4)

    def take(self, tile: Tile, descriptors: np.ndarray, state: State) -> np.ndarray:
        """The tile's elements, fp32 [groups, rows, depth], whose shared memory is in use from now on."""
        places, size = tile.places(descriptors), tile.element_bytes
        if (places + size > state.shared.num_bytes).any():
            raise MemoryFault("a matrix descriptor that reaches beyond shared memory")
        places += (self.teams[:, 0] // state.shared.num_warps * state.shared.stride)[:, None, None]
        side_by_side = 16 // size
        chunks = places[:, ::side_by_side, :] if tile.transposed else places[:, :, ::side_by_side]
        self.in_use.append(state.shared.begin_reading(chunks.reshape(len(places), -1), self.teams, "a matrix product"))
        bits = state.shared.bytes.view(UNSIGNED[8 * size])[places // size]
        return decode(bits, tile.kind).astype(np.float32, copy=False)

    def add(self, products: np.ndarray, keeps_sum: np.ndarray, state: State) -> None:
        """Add [groups, 64, n] to the sums that are set aside, which begin as what the registers hold."""
        lanes, keeps = self.lanes.reshape(-1), np.repeat(keeps_sum, WARPGROUP)
        for register, part in zip(self.targets, fragments_c(products.reshape(-1, 16, products.shape[2])), strict=True):
            name = register.name
            held = state.registers.get(name, np.zeros(state.num_lanes, np.uint32))
            unfinished = state.unfinished.setdefault(name, np.zeros(state.num_lanes, np.int64))
            sums = state.sums.setdefault(name, held.copy())
            fresh = lanes[unfinished[lanes] == 0]
            sums[fresh] = held[fresh]
            unfinished[lanes] += 1
            old = np.where(keeps, sums[lanes].view(np.float32), np.float32(0))
            sums[lanes] = (part + old).astype(np.float32).view(np.uint32)
            state.registers[name] = _with(held, lanes, np.uint32(0xFFFFFFFF))

    def finish(self, state: State, chosen: np.ndarray) -> None:
        """Hand over the sums that no later product adds to."""
        lanes = self.lanes[chosen].reshape(-1)
        for register in self.targets:
            sums, unfinished = state.sums[register.name], state.unfinished[register.name]
            unfinished[lanes] -= 1
            done = lanes[unfinished[lanes] == 0]
            state.registers[register.name] = _with(state.registers[register.name], done, sums[done])
        entries = np.flatnonzero(chosen)
        self.num_waiting -= np.bincount(entries // 4, minlength=len(self.num_waiting))
        done_here = np.intersect1d(entries // 4, np.flatnonzero(self.num_waiting == 0))
        for granules in self.in_use:
            state.shared.has_read(granules[entries // 4], self.warps[entries])
            state.shared.end_reading(granules[done_here])


def _with(register: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A copy, since other registers may hold the same array."""
    changed = register.copy()
    changed[lanes] = values
    return changed


BUILDERS = {
    "ldmatrix": load_matrices,
    "stmatrix": store_matrices,
    "mma": multiply_accumulate,
    "wgmma": warpgroup_multiply,
}
