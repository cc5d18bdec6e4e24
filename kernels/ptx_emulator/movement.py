"""Instructions that move data: between registers, to and from both memories, at once or asynchronously (cp.async)."""

from typing import NamedTuple

import numpy as np

from ptx_emulator.arithmetic import BUILDERS as ARITHMETIC
from ptx_emulator.arithmetic import Execute, elementwise, width_of
from ptx_emulator.errors import NotCoveredError
from ptx_emulator.numbers import SIGNED, UNSIGNED, bits_of
from ptx_emulator.ptx import Address, Instruction, Literal, Register
from ptx_emulator.state import State, address_reader, reader


def move(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """mov: a register, a constant, or several registers packed into one and out of it."""
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    kind = "pred" if kind == "pred" else f"b{bits_of(kind)}"
    if isinstance(target, tuple):
        part = bits_of(kind) // len(target)
        fetch = reader(source, kind, widths)

        def split(state: State) -> None:
            parts = np.ascontiguousarray(state.per_lane(fetch(state))).view(UNSIGNED[part])
            for register, column in zip(target, parts.reshape(state.num_lanes, -1).T, strict=True):
                state.write(register, np.ascontiguousarray(column))

        return split
    if isinstance(source, tuple):
        part = bits_of(kind) // len(source)
        readers = [reader(s, f"b{part}", widths) for s in source]

        def join(state: State) -> None:
            columns = [state.per_lane(f(state)) for f in readers]
            state.write(target, np.stack(columns, 1).view(UNSIGNED[bits_of(kind)])[:, 0])

        return join
    plain = elementwise(instruction, widths, lambda a: a, (kind,), kind)
    names = {operand.name for operand in (target, source) if isinstance(operand, Register)}

    def copy(state: State) -> None:
        # The compiler puts copies wherever it likes, between a wgmma.fence and a product too: no use, just a new name.
        is_used = isinstance(source, Register) and source.name in state.unfenced
        plain(state)
        if not is_used:
            state.unfenced -= names

    return copy


def load(instruction: Instruction, widths: dict[str, int]) -> Execute:
    modifiers = instruction.modifiers
    kind = modifiers[-1]
    target, source = instruction.operands
    targets = target if isinstance(target, tuple) else (target,)
    if "param" in modifiers:
        return _load_parameter(target, source, kind, width_of(target, widths))
    address = address_reader(source, widths)
    width, held = bits_of(kind) // 8, [width_of(t, widths) for t in targets]
    if not ("global" in modifiers or _is_shared(modifiers)):
        raise NotCoveredError(f"ld.{'.'.join(modifiers)}: of global and shared memory only")

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        addresses = address(state)[lanes]
        if "global" in modifiers:
            columns = state.memory.load(addresses, width, len(targets))
        else:
            data = state.shared.load(addresses, state.block_of[lanes], state.warp_of[lanes], width * len(targets))
            columns = list(data.view(UNSIGNED[8 * width]).T)
        for register, column, bits in zip(targets, columns, held, strict=True):
            state.write_active(register, lanes, _widened(column, kind, bits))

    return execute


def _widened(column: np.ndarray, kind: str, bits: int) -> np.ndarray:
    if kind[0] == "s":
        column = column.view(SIGNED[column.dtype.itemsize * 8]).astype(SIGNED[bits])
    return column.astype(UNSIGNED[bits])  # a copy, not a column of an array that would stay alive


def _load_parameter(target: Register, source: Address, kind: str, held: int) -> Execute:
    bits = bits_of(kind)

    def execute(state: State) -> None:
        value = np.array([state.parameters[source.base] & (1 << bits) - 1], UNSIGNED[bits])
        state.write(target, np.full(state.num_lanes, _widened(value, kind, held)[0]))

    return execute


def store(instruction: Instruction, widths: dict[str, int]) -> Execute:
    modifiers = instruction.modifiers
    kind = f"b{bits_of(modifiers[-1])}"
    target, source = instruction.operands
    address = address_reader(target, widths)
    fetch = [reader(s, kind, widths) for s in (source if isinstance(source, tuple) else (source,))]
    if not ("global" in modifiers or _is_shared(modifiers)):
        raise NotCoveredError(f"st.{'.'.join(modifiers)}: to global and shared memory only")

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        addresses = address(state)[lanes]
        columns = [state.per_lane(f(state))[lanes] for f in fetch]
        if "global" in modifiers:
            state.memory.store(addresses, columns)
        else:
            data = np.stack(columns, 1).view(np.uint8)
            state.shared.store(addresses, state.block_of[lanes], state.warp_of[lanes], data)

    return execute


def atomic(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """atom and red on global memory, one thread after the other."""
    modifiers, kind = instruction.modifiers, instruction.modifiers[-1]
    operands = instruction.operands if instruction.name == "atom" else (Register("_"), *instruction.operands)
    target, where, *values = operands
    update = {"add": np.add, "max": np.maximum, "min": np.minimum, "exch": lambda old, new: new}.get(
        next((m for m in modifiers if m in ("add", "max", "min", "exch")), "")
    )
    if "global" not in modifiers or update is None or len(values) != 1 or isinstance(values[0], tuple):
        raise NotCoveredError(f"{instruction.name}.{'.'.join(modifiers)}")
    address, value = address_reader(where, widths), reader(values[0], kind, widths)

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        new = np.ascontiguousarray(state.per_lane(value(state))[lanes])
        bits = UNSIGNED[new.dtype.itemsize * 8]

        def combine(old, mine):
            return np.asarray(update(old.view(new.dtype), mine.view(new.dtype))).astype(new.dtype).view(bits)

        state.write_active(target, lanes, state.memory.exchange(address(state)[lanes], new.view(bits), combine))

    return execute


def asynchronous_copy(instruction: Instruction, widths: dict[str, int]) -> Execute:
    """cp.async: copies, the groups they are committed to, and the waits. Bulk copies (TMA) are not covered."""
    modifiers = instruction.modifiers
    if "bulk" in modifiers or "mbarrier" in modifiers:
        raise NotCoveredError("bulk asynchronous copies (TMA)")
    if "commit_group" in modifiers:
        return lambda state: state.copies.commit(state.blocks)
    if "wait_all" in modifiers:
        return _wait_for_all_copies
    if "wait_group" in modifiers:
        keep = instruction.operands[0].value
        return lambda state: state.copies.wait(state, keep)
    to, source, size, *rest = instruction.operands
    if not isinstance(size, Literal):
        raise NotCoveredError("cp.async of a size in a register")
    target, address, num_bytes = address_reader(to, widths), address_reader(source, widths), size.value
    wanted = reader(rest[0], "u32", widths) if rest else None

    def execute(state: State) -> None:
        lanes = state.active_lanes()
        blocks, warps = state.block_of[lanes], state.warp_of[lanes]
        data = np.zeros((len(blocks), num_bytes), np.uint8)
        full: np.ndarray | slice = slice(None)
        if wanted is not None:
            sizes = state.per_lane(wanted(state))[lanes]
            if ((sizes != 0) & (sizes != num_bytes)).any():
                raise NotCoveredError("cp.async of a part of its bytes")
            full = sizes == num_bytes
        unit = min(num_bytes, 8)
        columns = state.memory.load(address(state)[lanes][full], unit, num_bytes // unit)
        data[full] = np.stack(columns, 1).view(np.uint8)
        firsts = state.shared.issue_copy(target(state)[lanes], blocks, warps, num_bytes)
        state.copies.add(Copy(firsts, blocks, warps, data), blocks)

    return execute


def _wait_for_all_copies(state: State) -> None:
    state.copies.commit(state.blocks)  # copies without a group, too
    state.copies.wait(state, 0)


class Copy(NamedTuple):
    """The data of one cp.async of some threads, read and not yet delivered."""

    firsts: np.ndarray
    blocks: np.ndarray
    warps: np.ndarray
    data: np.ndarray

    def finish(self, state: State, chosen: np.ndarray) -> None:
        state.shared.land_copy(*(part[chosen] for part in self))


def _is_shared(modifiers: tuple[str, ...]) -> bool:
    return any(m == "shared" or m.startswith("shared::cta") for m in modifiers)


BUILDERS = ARITHMETIC | {
    "mov": move,
    "ld": load,
    "st": store,
    "atom": atomic,
    "red": atomic,
    "cvta": move,
    "cp": asynchronous_copy,
}
