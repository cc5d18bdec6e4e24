"""Instructions that move data: between registers, to and from both memories, at once or asynchronously (cp.async)."""

from typing import NamedTuple

import numpy as np

from ptx_emulator.arithmetic import BUILDERS as ARITHMETIC
from ptx_emulator.errors import NotCoveredError
from ptx_emulator.numbers import UNSIGNED, bits_of, widen
from ptx_emulator.ptx import Address, Instruction, Literal, Register
from ptx_emulator.state import Execute, State, address_reader, reader, writer


def move(instruction: Instruction) -> Execute:
    """mov: a register, a constant, or several registers packed into one and out of it."""
    target, source = instruction.operands
    bits = bits_of(instruction.modifiers[-1])
    kind = "pred" if bits == 1 else f"b{bits}"
    if isinstance(target, tuple):
        part = bits // len(target)
        fetch = reader(source, kind)

        def split(state: State) -> None:
            parts = np.ascontiguousarray(state.per_lane(fetch(state))).view(UNSIGNED[part])
            for register, column in zip(target, parts.reshape(state.num_lanes, -1).T, strict=True):
                state.write(register, np.ascontiguousarray(column))

        return split
    if isinstance(source, tuple):
        readers = [reader(s, f"b{bits // len(source)}") for s in source]

        def join(state: State) -> None:
            columns = [state.per_lane(f(state)) for f in readers]
            state.write(target, np.stack(columns, 1).view(UNSIGNED[bits])[:, 0])

        return join
    fetch, write = reader(source, kind), writer(target, kind)
    names = {operand.name for operand in (target, source) if isinstance(operand, Register)}

    def copy(state: State) -> None:
        # The compiler puts copies wherever it likes, between a wgmma.fence and a product too: no use, just a new name.
        is_used = isinstance(source, Register) and source.name in state.unfenced
        write(state, fetch(state))
        if not is_used:
            for name in names:
                state.unfenced.pop(name, None)

    return copy


def load(instruction: Instruction) -> Execute:
    kind = instruction.modifiers[-1]
    target, source = instruction.operands
    if "param" in instruction.modifiers:
        return _load_parameter(target, source, kind)
    targets = target if isinstance(target, tuple) else (target,)
    is_global, address, width = _is_global(instruction), address_reader(source), bits_of(kind) // 8

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        addresses = address(state)[lanes]
        state.observer.access(state, instruction, lanes, addresses, width * len(targets), is_global)
        if is_global:
            columns = state.memory.load(addresses, width, len(targets), state.number_of[lanes])
        else:
            data = state.shared.load(addresses, state.warp_id[lanes], width * len(targets))
            columns = [column.copy() for column in data.view(UNSIGNED[8 * width]).T]
        for register, column in zip(targets, columns, strict=True):
            state.write_active(register, lanes, widen(column, kind, register.bits))

    return execute


def _load_parameter(target: Register, source: Address, kind: str) -> Execute:
    bits = bits_of(kind)

    def execute(state: State) -> None:
        value = np.array(state.parameters[source.base.name] & (1 << bits) - 1, UNSIGNED[bits])
        state.write(target, widen(value, kind, target.bits))

    return execute


def store(instruction: Instruction) -> Execute:
    bits = bits_of(instruction.modifiers[-1])
    target, source = instruction.operands
    is_global, address = _is_global(instruction), address_reader(target)
    fetch = [reader(s, f"b{bits}") for s in (source if isinstance(source, tuple) else (source,))]

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        addresses = address(state)[lanes]
        state.observer.access(state, instruction, lanes, addresses, bits // 8 * len(fetch), is_global)
        columns = [state.per_lane(f(state))[lanes] for f in fetch]
        if is_global:
            state.memory.store(addresses, columns, state.number_of[lanes])
        else:
            data = np.stack(columns, 1).view(np.uint8)
            state.shared.store(addresses, state.warp_id[lanes], data)

    return execute


UPDATES = {"add": np.add, "max": np.maximum, "min": np.minimum, "exch": lambda old, new: new}


def atomic(instruction: Instruction) -> Execute:
    """atom and red on global memory, one thread after the other."""
    kind = instruction.modifiers[-1]
    target, where, *values = (*([] if instruction.name == "atom" else [Register("_")]), *instruction.operands)
    update = next((UPDATES[m] for m in instruction.modifiers if m in UPDATES), None)
    if not _is_global(instruction) or update is None or len(values) != 1 or isinstance(values[0], tuple):
        raise NotCoveredError(_full_name(instruction))
    address, value = address_reader(where), reader(values[0], kind)
    orders = bool({"acq_rel", "acquire", "release"} & set(instruction.modifiers))

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        addresses = address(state)[lanes]
        new = np.ascontiguousarray(state.per_lane(value(state))[lanes])
        bits = UNSIGNED[new.dtype.itemsize * 8]
        state.observer.access(state, instruction, lanes, addresses, new.dtype.itemsize, True)

        def combine(old, mine):
            return np.asarray(update(old.view(new.dtype), mine.view(new.dtype))).astype(new.dtype).view(bits)

        old = state.memory.exchange(addresses, new.view(bits), combine, state.number_of[lanes], orders)
        state.write_active(target, lanes, old)

    return execute


def asynchronous_copy(instruction: Instruction) -> Execute:
    """cp.async: copies, the groups they are committed to, and the waits."""
    modifiers = instruction.modifiers
    if "mbarrier" in modifiers:
        raise NotCoveredError("cp.async that arrives at an mbarrier")
    if "commit_group" in modifiers:
        return lambda state: state.copies.commit(state.active_warps())
    if "wait_all" in modifiers:
        return _wait_for_all_copies
    if "wait_group" in modifiers:
        keep = instruction.operands[0].value
        return lambda state: state.copies.wait(state, keep)
    to, source, size, *rest = instruction.operands
    if not isinstance(size, Literal):
        raise NotCoveredError("cp.async of a size in a register")
    target, address, num_bytes = address_reader(to), address_reader(source), size.value
    wanted = reader(rest[0] if rest else size, "u32")

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        warps = state.warp_id[lanes]
        sizes = state.per_lane(wanted(state))[lanes]
        if ((sizes != 0) & (sizes != num_bytes)).any():
            raise NotCoveredError("cp.async of a part of its bytes")
        # A thread that wants 0 bytes writes zeros and reads nothing.
        full, places, addresses = sizes == num_bytes, target(state)[lanes], address(state)[lanes]
        state.observer.access(state, instruction, lanes, places, num_bytes, False)
        readers = np.arange(state.num_lanes)[lanes][full]
        state.observer.access(state, instruction, readers, addresses[full], num_bytes, True)
        unit = min(num_bytes, 8)
        columns = state.memory.load(addresses[full], unit, num_bytes // unit, state.number_of[readers])
        data = np.zeros((len(warps), num_bytes), np.uint8)
        data[full] = np.stack(columns, 1).view(np.uint8)
        firsts = state.shared.issue_copy(places, warps, num_bytes)
        state.copies.add(Copy(firsts, warps, data, np.where(full, num_bytes, 0)), warps)
        state.observer.copy(state)

    return execute


def _wait_for_all_copies(state: State) -> None:
    state.copies.commit(state.active_warps())  # copies without a group, too
    state.copies.wait(state, 0)


class Copy(NamedTuple):
    """The data of one cp.async of some threads, read and not yet delivered; `sizes`: bytes that each thread read."""

    firsts: np.ndarray
    warps: np.ndarray
    data: np.ndarray
    sizes: np.ndarray

    def finish(self, state: State, chosen: np.ndarray) -> None:
        stamps = state.shared.stamps(self.warps[chosen])
        state.shared.land_copy(self.firsts[chosen], stamps, self.data[chosen])


def _is_global(instruction: Instruction) -> bool:
    """Whether it works on global memory, or on shared memory."""
    if "global" in instruction.modifiers:
        return True
    if not any(m == "shared" or m.startswith("shared::cta") for m in instruction.modifiers):
        raise NotCoveredError(f"{_full_name(instruction)}: of global and shared memory only")
    return False


def _full_name(instruction: Instruction) -> str:
    return ".".join((instruction.name, *instruction.modifiers))


BUILDERS = ARITHMETIC | {
    "mov": move,
    "ld": load,
    "st": store,
    "atom": atomic,
    "red": atomic,
    "cvta": move,
    "cp": asynchronous_copy,
}
