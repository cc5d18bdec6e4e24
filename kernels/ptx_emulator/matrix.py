"""Matrix instructions: ldmatrix and stmatrix, mma.sync of a warp, wgmma of four warps.

How fragments lie in registers: PTX ISA 9.7.14.5 (mma.m16n8k16), 9.7.15.5 (wgmma). Products are summed in fp32.
"""

import re
from dataclasses import dataclass

import numpy as np

from ptx_emulator.arithmetic import Execute
from ptx_emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from ptx_emulator.numbers import decode
from ptx_emulator.ptx import Instruction, Operand
from ptx_emulator.state import WARP, State, address_reader, reader
from ptx_emulator.warps import whole_warps

WARPGROUP = 4 * WARP


def load_matrices(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """ldmatrix: 8x8 matrices of 16-bit elements; threads 8i to 8i + 7 of a warp give the rows of matrix i."""
    targets, address, transposed = _matrix_operands(instruction, widths, 0)

    def execute(state: State) -> None:
        whole_warps(state, "ldmatrix")
        warps = _active_warps(state)
        rows = _row_lanes(warps, len(targets))
        data = state.shared.load(address(state)[rows], state.block_of[rows], state.warp_of[rows], 16)
        matrices = data.view(np.uint16).reshape(len(warps), len(targets), 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        fragments = np.ascontiguousarray(matrices.swapaxes(0, 1)).view(np.uint32)
        for target, values in zip(targets, fragments, strict=True):
            state.write(target, _spread(values.reshape(-1, WARP), warps, state))

    return execute


def store_matrices(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """stmatrix, the reverse."""
    sources, address, transposed = _matrix_operands(instruction, widths, 1)
    fetch = [reader(source, "b32", widths) for source in sources]

    def execute(state: State) -> None:
        whole_warps(state, "stmatrix")
        warps = _active_warps(state)
        fragments = np.stack([state.per_lane(values(state)).reshape(-1, WARP)[warps] for values in fetch], 1)
        matrices = fragments.view(np.uint16).reshape(-1, 8, 8)
        if transposed:
            matrices = matrices.transpose(0, 2, 1)
        rows = _row_lanes(warps, len(fetch))
        data = np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, 16)
        state.shared.store(address(state)[rows], state.block_of[rows], state.warp_of[rows], data)

    return execute


def _matrix_operands(instruction: Instruction, widths: dict[str, int], registers_at: int):
    if "m8n8" not in instruction.modifiers or instruction.modifiers[-1] != "b16":
        raise NotCoveredError(f"{instruction.name}.{'.'.join(instruction.modifiers)}")
    registers, where = instruction.operands[registers_at], instruction.operands[1 - registers_at]
    if not isinstance(registers, tuple):
        registers = (registers,)
    return registers, address_reader(where, widths), "trans" in instruction.modifiers


def _active_warps(state: State) -> np.ndarray:
    if state.active is None:
        return np.arange(state.num_lanes // WARP)
    return np.flatnonzero(state.active.reshape(-1, WARP)[:, 0])


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


def multiply_accumulate(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """mma.sync.m16n8k16 and m16n8k8 of 16-bit floats: D = A B + C, for one warp."""
    shape = next((m for m in instruction.modifiers if re.fullmatch(r"m\d+n\d+k\d+", m)), "")
    kinds = instruction.modifiers[-4:]
    if shape not in ("m16n8k16", "m16n8k8") or kinds not in (("f32", k, k, "f32") for k in ("f16", "bf16")):
        raise NotCoveredError(f"mma.{'.'.join(instruction.modifiers)}")
    d, a, b, c = instruction.operands
    fetch_a, fetch_b = ([reader(r, "b32", widths) for r in operand] for operand in (a, b))
    fetch_c = [reader(r, "f32", widths) for r in c]

    def execute(state: State) -> None:
        whole_warps(state, "mma.sync")
        left = fragment_a([f(state) for f in fetch_a], kinds[1], state.num_lanes)
        right = np.stack([_pairs(f(state), kinds[1], state.num_lanes) for f in fetch_b], 2)
        right = right.reshape(len(left), 8, -1)  # [warps, n, k]
        products = left @ right.transpose(0, 2, 1)
        # Register i of thread (g, q): row g + 8 * (i // 2), column 2 * q + i % 2.
        spread = products.reshape(-1, 2, 8, 4, 2)
        for i, (target, addend) in enumerate(zip(d, fetch_c, strict=True)):
            state.write(target, (spread[:, i // 2, :, :, i % 2].reshape(-1) + addend(state)).view(np.uint32))

    return execute


def _pairs(register: np.ndarray, kind: str, num_lanes: int) -> np.ndarray:
    """A register of two 16-bit numbers per thread -> fp32 [warps, 8 (g), 4 (q), 2]."""
    halves = np.ascontiguousarray(register if register.ndim else np.broadcast_to(register, num_lanes)).view(np.uint16)
    return decode(halves, kind).astype(np.float32, copy=False).reshape(-1, 8, 4, 2)


def fragment_a(registers: list[np.ndarray], kind: str, num_lanes: int) -> np.ndarray:
    """A's registers -> fp32 [warps, 16, k]. Register i: row g + 8 * (i % 2), columns 2q, 2q + 1 of k's half i // 2."""
    pairs = np.stack([_pairs(r, kind, num_lanes) for r in registers], 1)
    warps, count = pairs.shape[:2]
    halves = pairs.reshape(warps, count // 2, 2, 8, 4, 2)  # [warps, k half, row half, g, q, 2]
    return halves.transpose(0, 2, 3, 1, 4, 5).reshape(warps, 16, -1)


# -- wgmma ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """An operand of wgmma in shared memory, as its 64-bit descriptor says (PTX ISA 9.7.15.5.1.2.2).

    `rows` x `depth` 16-bit elements; `depth` runs along k. Contiguous runs of up to 128 bytes lie along k, or, when
    `transposed`, along the rows.
    """

    rows: int
    depth: int
    transposed: bool

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
            offset = i // 8 * stride + i % 8 * span + k * 2
        address = start + offset
        # Swizzling: within a row, 16-byte chunks change places by the row's number, which lies from bit 7 on.
        chunks = {128: 7, 64: 3, 32: 1}[span]
        return address ^ ((address >> 7 & chunks) << 4)


def warpgroup_multiply(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """wgmma: fence, mma_async, commit_group, wait_group."""
    what = instruction.modifiers[0]
    if what == "fence":
        return _fence_registers
    if what == "commit_group":
        return lambda state: state.products.commit(state.blocks)
    if what == "wait_group":
        keep = instruction.operands[0].value
        return lambda state: state.products.wait(state, keep)
    return _issue_product(instruction, widths)


def _fence_registers(state: State) -> None:
    state.is_fenced = True
    state.unfenced.clear()


def _issue_product(instruction: Instruction, widths: dict[str, int]) -> Execute:
    shape = next((re.fullmatch(r"m64n(\d+)k16", m) for m in instruction.modifiers if m.startswith("m64")), None)
    kinds = instruction.modifiers[-3:]
    if shape is None or kinds not in (("f32", k, k) for k in ("f16", "bf16")):
        raise NotCoveredError(f"wgmma.{'.'.join(instruction.modifiers)}")
    d, a, b, keep_sum, *signs = instruction.operands
    a_in_registers = isinstance(a, tuple)
    if [s.value for s in signs[:2]] != [1, 1]:
        raise NotCoveredError("wgmma with a negated operand")
    transposed = [s.value == 1 for s in signs[2:]]
    left = [reader(r, "b32", widths) for r in a] if a_in_registers else [reader(a, "b64", widths)]
    tile_a = None if a_in_registers else Tile(64, 16, transposed[0])
    tile_b = Tile(int(shape[1]), 16, transposed[-1])
    right, keeps = reader(b, "b64", widths), reader(keep_sum, "pred", widths)

    names = {register.name for register in (*d, *(a if a_in_registers else ()))}

    def execute(state: State) -> None:
        groups = _active_groups(state)
        used = state.unfenced.copy()
        product = Product(d, kinds[1], groups, state, _per_group(keeps(state), groups, state))
        if tile_a is None:
            product.a = fragment_a([f(state) for f in left], kinds[1], state.num_lanes).reshape(-1, 64, 16)[groups]
        else:
            product.a_places = product.locate(tile_a, _per_group(left[0](state), groups, state), state)
        product.b_places = product.locate(tile_b, _per_group(right(state), groups, state), state)
        if not (state.is_fenced and used.isdisjoint(names)):
            raise RaceError("a matrix product takes registers that threads used, with no wgmma.fence in between")
        state.unfenced = used  # registers that products share are not used by threads
        state.products.add(product, product.blocks)

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

    It is computed as late as a GPU might: at the wait, from shared memory as it is then. A in registers is taken at the
    issue, though it must not change before the wait either.
    """

    def __init__(
        self, targets: tuple[Operand, ...], kind: str, groups: np.ndarray, state: State, keeps_sum: np.ndarray
    ) -> None:
        self.targets, self.kind, self.groups, self.keeps_sum = targets, kind, groups, keeps_sum
        self.blocks = state.block_of.reshape(-1, WARPGROUP)[groups, 0]
        self.warps = state.warp_of.reshape(-1, WARPGROUP)[groups, 0]
        self.lanes = (groups[:, None] * WARPGROUP + np.arange(WARPGROUP)).reshape(-1)
        self.a: np.ndarray | None = None
        self.a_places: np.ndarray | None = None
        self.b_places: np.ndarray | None = None
        self.in_use: list[np.ndarray] = []
        self._set_sums_aside(state)

    def _set_sums_aside(self, state: State) -> None:
        for register in self.targets:
            name = register.name
            held = state.registers.get(name, np.zeros(state.num_lanes, np.uint32))
            unfinished = state.unfinished.setdefault(name, np.zeros(state.num_lanes, np.int64))
            sums = state.sums.setdefault(name, held.copy())
            fresh = self.lanes[unfinished[self.lanes] == 0]
            sums[fresh] = held[fresh]
            unfinished[self.lanes] += 1
            state.registers[name] = _with(held, self.lanes, np.uint32(0xFFFFFFFF))

    def locate(self, tile: Tile, descriptors: np.ndarray, state: State) -> np.ndarray:
        """Indices of the tile's elements into the bytes of shared memory, which are in use from now on."""
        places = tile.places(descriptors)
        if (places + 2 > state.shared.num_bytes).any():
            raise MemoryFault("a matrix descriptor that reaches beyond shared memory")
        places += (self.blocks * state.shared.stride)[:, None, None]
        chunks = places[:, ::8, :] if tile.transposed else places[:, :, ::8]  # 8 elements lie side by side
        self.in_use.append(state.shared.begin_product(chunks.reshape(len(self.groups), -1), self.blocks))
        return places

    def finish(self, state: State, chosen: np.ndarray) -> None:
        """Compute, and hand over the sums that no later product adds to."""
        left = self.a[chosen] if self.a_places is None else self._read(state, self.a_places[chosen])
        products = left @ self._read(state, self.b_places[chosen]).transpose(0, 2, 1)  # [groups, 64, n]
        # Thread (warp w, g, q), register i: row 16 w + g + 8 * (i // 2 % 2), column 8 * (i // 4) + 2 q + i % 2.
        spread = products.reshape(len(products), 4, 2, 8, -1, 4, 2)  # groups, w, row half, g, column tile, q, 2
        lanes = self.lanes.reshape(-1, WARPGROUP)[chosen].reshape(-1)
        keeps = np.repeat(self.keeps_sum[chosen], WARPGROUP)
        for i, register in enumerate(self.targets):
            sums, unfinished = state.sums[register.name], state.unfinished[register.name]
            part = spread[:, :, i // 2 % 2, :, i // 4, :, i % 2].reshape(-1)
            old = np.where(keeps, sums[lanes].view(np.float32), np.float32(0))
            sums[lanes] = (part + old).astype(np.float32).view(np.uint32)
            unfinished[lanes] -= 1
            done = lanes[unfinished[lanes] == 0]
            state.registers[register.name] = _with(state.registers[register.name], done, sums[done])
        for granules in self.in_use:
            state.shared.end_product(granules[chosen], self.blocks[chosen], self.warps[chosen])

    def _read(self, state: State, places: np.ndarray) -> np.ndarray:
        halves = state.shared.bytes.view(np.uint16)[places // 2]
        return decode(halves, self.kind).astype(np.float32, copy=False)


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
