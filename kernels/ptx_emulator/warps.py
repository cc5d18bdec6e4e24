"""Instructions that threads execute together: shuffles and reductions within a warp, barriers within a block."""

from collections.abc import Callable

import numpy as np

from ptx_emulator.errors import EmulationError, NotCoveredError
from ptx_emulator.memory import AGENTS
from ptx_emulator.ptx import Instruction, Pair
from ptx_emulator.state import AT_BARRIER, RUNNING, WARP, Execute, State, address_reader, reader, writer


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


def elect(instruction: Instruction) -> Execute:
    """elect.sync: one thread of each warp, the first."""
    target, _ = instruction.operands
    if not isinstance(target, Pair):
        raise NotCoveredError("elect.sync without a predicate")

    def execute(state: State) -> None:
        whole_warps(state, "elect.sync")
        state.write(target.value, np.zeros(state.num_lanes, np.uint32))
        state.write(target.predicate, state.thread_of % WARP == 0)

    return execute


def barrier(instruction: Instruction) -> Execute:
    """bar.sync and barrier.sync of the block, or of as many threads as they say; bar.arrive, which does not wait."""
    if "warp" in instruction.modifiers:
        return lambda state: None
    waits = "sync" in instruction.modifiers
    if not waits and "arrive" not in instruction.modifiers:
        raise NotCoveredError(f"{instruction.name}.{'.'.join(instruction.modifiers)}")
    number, *rest = (reader(operand, "u32") for operand in instruction.operands)

    def execute(state: State) -> None:
        if state.active is not None and not _agree(state.active.reshape(-1, WARP)):
            raise EmulationError("a barrier that some threads of a warp do not reach")
        warps, num_warps = state.active_warps(), state.shared.num_warps
        lanes = warps * WARP
        numbers = state.per_lane(number(state))[lanes]
        sizes = state.per_lane(rest[0](state))[lanes] if rest else np.full(len(warps), state.num_threads)
        if (
            waits
            and len(warps) == num_warps * len(np.unique(warps // num_warps))
            and (sizes == state.num_threads).all()
        ):
            state.shared.synchronise(warps.reshape(-1, num_warps))  # whole blocks, as nearly always
            return
        for warp, name, size in zip(warps.tolist(), numbers.tolist(), sizes.tolist(), strict=True):
            _meet(state, warp, (warp // num_warps, name, size), waits)

    return execute


def _meet(state: State, warp: int, where: tuple[int, int, int], waits: bool) -> None:
    """A warp comes to a barrier; the last one lets those go who wait, and they know what all knew who came."""
    known, waiting, missing = state.meetings.pop(where, (np.zeros(AGENTS, np.int32), [], where[2]))
    known = np.maximum(known, state.shared.release(warp))
    waiting, missing = [*waiting, warp] if waits else waiting, missing - WARP
    if waits:
        state.stalled[warp] = AT_BARRIER
    if missing > 0:
        state.meetings[where] = known, waiting, missing
        return
    state.stalled[waiting] = RUNNING
    for other in waiting:
        state.shared.acquire(other, known)


def fence(instruction: Instruction) -> Execute:
    """fence.proxy makes threads' writes, or a tensor map, visible to hardware; other fences have no effect here."""
    if "tensormap::generic" in instruction.modifiers and "acquire" in instruction.modifiers:
        address = address_reader(instruction.operands[0])

        def acquire(state: State) -> None:
            lanes = state.active_lanes()
            state.new_maps -= set(zip(state.block_of[lanes].tolist(), address(state)[lanes].tolist(), strict=True))

        return acquire
    if {"proxy", "async"} <= set(instruction.modifiers):
        return lambda state: state.shared.fence(state.active_warps())
    return lambda state: None


def whole_warps(state: State, what: str) -> None:
    if state.active is not None and not _agree(state.active.reshape(-1, WARP)):
        raise NotCoveredError(f"{what} by a part of a warp")


def _agree(rows: np.ndarray) -> bool:
    return bool((rows == rows[:, :1]).all())


def nothing(instruction: Instruction) -> Execute:
    """Hints, and fences that the emulator's sequential execution does not need."""
    return lambda state: None


BUILDERS = {
    "shfl": shuffle,
    "redux": reduce_warp,
    "vote": vote,
    "elect": elect,
    "bar": barrier,
    "barrier": barrier,
    "fence": fence,
    "membar": nothing,
    "prefetch": nothing,
    "griddepcontrol": nothing,
    "setmaxnreg": nothing,
}
