"""Instructions that threads execute together: shuffles and reductions within a warp, barriers within a block."""

from collections.abc import Callable

import numpy as np

from ptx_emulator.errors import EmulationError, NotCoveredError
from ptx_emulator.ptx import Instruction, Literal, Pair
from ptx_emulator.state import WARP, Execute, State, reader, writer


def shuffle(instruction: Instruction) -> Execute:
    """shfl.sync: each thread gets another's value; segments as in the PTX ISA, 9.7.9.6."""
    mode = instruction.modifiers[1]
    target, *sources = instruction.operands
    value, by, clamp = (reader(s, kind) for s, kind in zip(sources[:3], ("b32", "u32", "u32"), strict=True))
    lane = np.arange(WARP)[None]

    def per_warp(numbers: np.ndarray, state: State) -> np.ndarray:
        return state.per_lane(numbers).reshape(-1, WARP).astype(np.int64)

    def execute(state: State) -> None:
        whole_warps(state, "shfl.sync")
        values, shift, mask = (per_warp(f(state), state) for f in (value, by, clamp))
        shift &= 31
        segment, last = mask >> 8 & 31, mask & 31
        limit = (lane & segment) | (last & ~segment)
        other = {
            "bfly": lane ^ shift, "idx": (lane & segment) | (shift & ~segment),
            "up": lane - shift, "down": lane + shift,
        }[mode]  # fmt: skip
        in_range = other >= limit if mode == "up" else other <= limit
        found = np.take_along_axis(values, np.where(in_range, other, lane), 1).astype(np.uint32).reshape(-1)
        if isinstance(target, Pair):
            state.write(target.value, found)
            state.write(target.predicate, np.broadcast_to(in_range, values.shape).reshape(-1).copy())
        else:
            state.write(target, found)

    return execute


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


def reduce_warp(instruction: Instruction) -> Execute:
    """redux.sync"""
    kind = instruction.modifiers[-1]
    reduction = REDUCTIONS[instruction.modifiers[1]]
    target, source, *_ = instruction.operands
    fetch, write = reader(source, kind), writer(target, kind)

    def execute(state: State) -> None:
        whole_warps(state, "redux.sync")
        values = state.per_lane(fetch(state)).reshape(-1, WARP)
        write(state, np.repeat(reduction(values, axis=1).astype(values.dtype), WARP))

    return execute


def vote(instruction: Instruction) -> Execute:
    """vote.sync.any, .all and .ballot"""
    mode = instruction.modifiers[1]
    target, source, *_ = instruction.operands
    fetch = reader(source, "pred")

    def execute(state: State) -> None:
        whole_warps(state, "vote.sync")
        bits = state.per_lane(fetch(state)).reshape(-1, WARP)
        if mode == "ballot":
            said = (bits.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(1).astype(np.uint32)
        elif mode in ("any", "all"):
            said = getattr(bits, mode)(1)
        else:
            raise NotCoveredError(f"vote.sync.{mode}")
        state.write(target, np.repeat(said, WARP))

    return execute


def barrier(instruction: Instruction) -> Execute:
    """bar.sync of the whole block. (Blocks run in lock-step, so it only records the barrier.)"""
    if "warp" in instruction.modifiers:
        return lambda state: None
    first, *rest = instruction.operands
    if instruction.modifiers[0] != "sync" and "sync" not in instruction.modifiers:
        raise NotCoveredError(f"{instruction.name}.{'.'.join(instruction.modifiers)}")
    if rest or not isinstance(first, Literal):
        raise NotCoveredError("a barrier for a part of the block")

    def execute(state: State) -> None:
        if state.active is not None and not whole_blocks(state):
            raise EmulationError("a barrier that some threads of a block do not reach: the GPU would hang")
        state.shared.barrier(state.blocks)

    return execute


def fence(instruction: Instruction) -> Execute:
    """fence.proxy.async makes threads' writes visible to the matrix unit; other fences have no effect here."""
    if "proxy" in instruction.modifiers:
        return lambda state: state.shared.fence(state.blocks)
    return lambda state: None


def whole_warps(state: State, what: str) -> None:
    if state.active is not None and not _agree(state.active.reshape(-1, WARP)):
        raise NotCoveredError(f"{what} by a part of a warp")


def whole_blocks(state: State) -> bool:
    return _agree(state.active.reshape(state.num_blocks, -1))


def _agree(rows: np.ndarray) -> bool:
    return bool((rows == rows[:, :1]).all())


def nothing(instruction: Instruction) -> Execute:
    """Hints, and fences that the emulator's sequential execution does not need."""
    return lambda state: None


BUILDERS = {
    "shfl": shuffle,
    "redux": reduce_warp,
    "vote": vote,
    "bar": barrier,
    "barrier": barrier,
    "fence": fence,
    "membar": nothing,
    "prefetch": nothing,
    "griddepcontrol": nothing,
}
