"""TMA: tensor maps, and bulk copies of a box of a tensor between global and shared memory.

A tensor map is 128 bytes whose layout is NVIDIA's secret; `TENSOR_MAP` is this emulator's own. Its fields are those of
tensormap.replace (PTX ISA 9.7.9.29), the innermost dimension first. A box lies in shared memory row after row; swizzled
by 32, 64 or 128 bytes, its rows are that long and their 16-byte chunks change places by the address.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ptx_emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from ptx_emulator.mbarriers import MemoryBarrier, mbarrier_at
from ptx_emulator.numbers import UNSIGNED, bits_of
from ptx_emulator.ptx import Address, Instruction, Operand
from ptx_emulator.state import Execute, State, address_reader, reader

MAP_BYTES = 128
TENSOR_MAP = np.dtype(
    [
        ("global_address", "u8"), ("rank", "u4"), ("elemtype", "u4"), ("swizzle_mode", "u4"),
        ("interleave_layout", "u4"), ("fill_mode", "u4"), ("box_dim", "u4", 5), ("global_dim", "u4", 5),
        ("element_stride", "u4", 5), ("global_stride", "u8", 4),
    ],
    align=True,
)  # fmt: skip
ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)  # by elemtype
ROW_BYTES = (0, 32, 64, 128)  # of a box, by swizzle_mode; 0: any


def swizzled(addresses: np.ndarray, row_bytes: int) -> np.ndarray:
    """Within a row, 16-byte chunks change places by the row's number, which lies from bit 7 of the address on."""
    return addresses ^ ((addresses >> 7 & max(row_bytes // 16 - 1, 0)) << 4)


def tensor_map(instruction: Instruction) -> Execute:
    """tensormap: replace a field of a map in shared memory, or copy a map from there to global memory."""
    modifiers = instruction.modifiers
    if modifiers[0] == "cp_fenceproxy":
        return _publish_map(instruction)
    name, kind = modifiers[2], modifiers[-1]
    where, *number, value = instruction.operands
    field, offset = TENSOR_MAP.fields[name][:2]
    place = offset + (field.base.itemsize * number[0].value if number else 0)
    address, fetch = address_reader(where), reader(value, f"u{bits_of(kind)}")

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        data = state.per_lane(fetch(state))[lanes].astype(field.base)
        places = address(state)[lanes] + np.uint64(place)
        state.shared.store(places, state.warp_id[lanes], np.ascontiguousarray(data)[:, None].view(np.uint8))

    return execute


def _publish_map(instruction: Instruction) -> Execute:
    to, source, _ = instruction.operands
    target, address = address_reader(to), address_reader(source)

    def execute(state: State) -> None:
        for lane in _one_per_warp(state):
            data = state.shared.load(address(state)[[lane]], state.warp_id[[lane]], MAP_BYTES)
            state.memory.store(target(state)[[lane]], list(data.view(np.uint64).T), state.number_of[[lane]])
            state.new_maps.add((int(state.block_of[lane]), int(target(state)[lane])))

    return execute


def _one_per_warp(state: State) -> np.ndarray:
    lanes = np.arange(state.num_lanes)[state.active_lanes()]
    return lanes[np.unique(state.warp_id[lanes], return_index=True)[1]]


class Box(NamedTuple):
    """Where a box lies: addresses of its elements in global memory, which of them are inside of the tensor, and the
    places of its 16-byte chunks from its start in shared memory."""

    addresses: np.ndarray
    inside: np.ndarray
    element_bytes: int
    row_bytes: int

    def chunks(self, start: int) -> np.ndarray:
        return swizzled(start + np.arange(0, len(self.addresses) * self.element_bytes, 16), self.row_bytes)


def _box(state: State, lane: int, map_address: int, corner: list[int]) -> Box:
    """The box of a tensor map whose first element has these coordinates, the innermost first."""
    if (int(state.block_of[lane]), map_address) in state.new_maps:
        raise RaceError("a bulk copy by a new tensor map, with no fence.proxy.tensormap in between")
    words = state.memory.load(np.array([map_address], np.uint64), 8, MAP_BYTES // 8, state.number_of[[lane]])
    tensor = np.frombuffer(np.concatenate(words).tobytes(), TENSOR_MAP, 1)[0]
    if tensor["elemtype"] >= len(ELEMENT_BYTES) or tensor["swizzle_mode"] >= len(ROW_BYTES):
        raise EmulationError("a bulk copy by what is no tensor map")
    size, row_bytes = ELEMENT_BYTES[tensor["elemtype"]], ROW_BYTES[tensor["swizzle_mode"]]
    rank = int(tensor["rank"]) + 1
    strides = [size, *(int(stride) for stride in tensor["global_stride"][: rank - 1])]
    if rank != len(corner):
        raise EmulationError(f"{len(corner)} coordinates for a tensor map of {rank} dimensions")
    if int(tensor["global_address"]) % 16 or any(stride % 16 for stride in strides[1:]):
        raise MemoryFault("a tensor map whose address or strides are not multiples of 16 bytes")
    if tensor["interleave_layout"] or tensor["fill_mode"] or (tensor["element_stride"][:rank] != 1).any():
        raise NotCoveredError("a tensor map that is interleaved, skips elements, or fills with NaN")
    if row_bytes and tensor["box_dim"][0] * size != row_bytes:
        raise NotCoveredError(f"a box with rows of {tensor['box_dim'][0] * size} bytes, swizzled by {row_bytes}")
    addresses, inside = np.array(tensor["global_address"], np.int64), np.array(True)
    for axis, (first, stride) in enumerate(zip(corner, strides, strict=True)):
        along = (first + np.arange(tensor["box_dim"][axis])).reshape(-1, *[1] * axis)
        addresses = addresses + along * stride
        inside = inside & (along >= 0) & (along < tensor["global_dim"][axis])
    return Box(addresses.reshape(-1).astype(np.uint64), inside.reshape(-1), size, row_bytes)


def bulk_copy(instruction: Instruction) -> Execute:
    """cp.async.bulk: boxes to and from shared memory; the groups of stores, and waits for them."""
    modifiers = instruction.modifiers
    if "commit_group" in modifiers:
        return lambda state: state.bulk_stores.commit(state.active_warps())
    if "wait_group" in modifiers:  # .read or not: what is stored is in global memory at once here
        keep = instruction.operands[0].value
        return lambda state: state.bulk_stores.wait(state, keep)
    if "tensor" not in modifiers or modifiers[3] not in ("1d", "2d", "3d", "4d", "5d"):
        raise NotCoveredError(f"{instruction.name}.{'.'.join(modifiers)}")
    if modifiers[4:] == ("global", "shared::cta", "bulk_group"):
        (tensor, *corner), source = instruction.operands
        return _each_box(tensor, corner, source, None, _store_box)
    if modifiers[4:] != ("shared::cta", "global", "mbarrier::complete_tx::bytes"):
        raise NotCoveredError(f"{instruction.name}.{'.'.join(modifiers)}")
    target, (tensor, *corner), barrier = instruction.operands
    return _each_box(tensor, corner, target, barrier, _load_box)


def _each_box(
    tensor: Address, corner: list[Operand], shared: Address, barrier: Address | None, copy: Callable[..., None]
) -> Execute:
    where, place = address_reader(tensor), address_reader(shared)
    first = [reader(coordinate, "s32") for coordinate in corner]
    mbarrier = address_reader(barrier) if barrier else None

    def execute(state: State) -> None:
        for lane in np.arange(state.num_lanes)[state.active_lanes()]:
            corner = [int(state.per_lane(fetch(state))[lane]) for fetch in first]
            box = _box(state, lane, int(where(state)[lane]), corner)
            chunks = box.chunks(int(place(state)[lane]))
            copy(state, lane, box, chunks, mbarrier and int(mbarrier(state)[lane]))

    return execute


def _load_box(state: State, lane: int, box: Box, chunks: np.ndarray, barrier: int) -> None:
    data = np.zeros(len(box.addresses), UNSIGNED[8 * box.element_bytes])  # zeros outside of the tensor
    addresses = box.addresses[box.inside]
    blocks, warp = np.full(len(addresses), state.number_of[lane]), int(state.warp_id[lane])
    data[box.inside] = state.memory.load(addresses, box.element_bytes, 1, blocks)[0]
    found = mbarrier_at(state, warp, barrier)
    firsts = state.shared.issue_copy(chunks, np.full(len(chunks), warp), 16, is_bulk=True)
    state.landing.append(BoxLoad(firsts, data.view(np.uint8).reshape(-1, 16), found))


class BoxLoad(NamedTuple):
    """A box on its way into shared memory."""

    firsts: np.ndarray
    data: np.ndarray
    mbarrier: MemoryBarrier

    def land(self, state: State) -> None:
        stamps = np.full((len(self.firsts), 1), self.mbarrier.stamp())
        state.shared.land_copy(self.firsts, stamps, self.data, is_bulk=True)
        self.mbarrier.missing_bytes -= self.data.size
        self.mbarrier.settle(state)


def _store_box(state: State, lane: int, box: Box, chunks: np.ndarray, _: None) -> None:
    warp = int(state.warp_id[lane])
    chunks = chunks + warp // state.shared.num_warps * state.shared.stride
    granules = state.shared.begin_reading(chunks[None], np.array([[warp]]), "a bulk copy")
    data = state.shared.bytes.reshape(-1, 16)[chunks // 16].reshape(-1).view(UNSIGNED[8 * box.element_bytes])
    addresses = box.addresses[box.inside]
    state.memory.store(addresses, [data[box.inside]], np.full(len(addresses), state.number_of[lane]))
    owner = np.array([warp])
    state.bulk_stores.add(BoxStore(granules, owner), owner)


class BoxStore(NamedTuple):
    """A box on its way out of shared memory."""

    granules: np.ndarray
    warp: np.ndarray

    def finish(self, state: State, chosen: np.ndarray) -> None:
        state.shared.has_read(self.granules, self.warp)
        state.shared.end_reading(self.granules)


BUILDERS = {"tensormap": tensor_map, "cp.async.bulk": bulk_copy}
