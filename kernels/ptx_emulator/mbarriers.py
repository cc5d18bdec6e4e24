"""mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of bulk copies, phase after phase.

A phase ends when all arrivals and all bytes that it expects have come. A wait names the parity of a phase, and goes on
unless the phase of that parity is the one under way (PTX ISA 9.7.13.15).
"""

from dataclasses import dataclass, field

import numpy as np

from ptx_emulator.errors import EmulationError, NotCoveredError
from ptx_emulator.memory import AGENTS
from ptx_emulator.ptx import Address, Instruction, Literal
from ptx_emulator.state import RETRY, RUNNING, WARP, Execute, State, address_reader, reader

OBJECT_BYTES = 8


@dataclass
class MemoryBarrier:
    """Its state, and what those who arrived know, for those who wait.

    Attributes:
        agent: In whose name its bulk copies write: their clock is the number of the phase that they end.
        missing, missing_bytes: Arrivals, and bytes, that the phase under way still expects.
        phase: Phases that have ended.
    """

    agent: int
    expected: int
    missing: int
    missing_bytes: int = 0
    phase: int = 0
    arriving: np.ndarray = field(default_factory=lambda: np.zeros(AGENTS, np.int32))
    knowledge: np.ndarray = field(default_factory=lambda: np.zeros(AGENTS, np.int32))
    waiting: list[int] = field(default_factory=list)

    def stamp(self) -> int:
        """Of what is written in the phase under way."""
        return (self.phase + 1) * AGENTS + self.agent

    def settle(self, state: State) -> None:
        """End the phase if nothing is missing."""
        if self.missing < 0:
            raise EmulationError(f"an mbarrier counts more arrivals in one phase than the {self.expected} it expects")
        if self.missing or self.missing_bytes:
            return
        self.phase, self.missing = self.phase + 1, self.expected
        self.arriving[self.agent] = self.phase
        self.knowledge = self.arriving.copy()
        state.stalled[self.waiting] = RUNNING
        self.waiting.clear()


def mbarrier(instruction: Instruction) -> Execute:
    what, *rest = instruction.modifiers
    operands = [operand for operand in instruction.operands if isinstance(operand, Address)]
    if len(operands) != 1 or not any(m.startswith("shared") for m in rest) or "shared::cluster" in rest:
        raise NotCoveredError(f"mbarrier.{'.'.join(instruction.modifiers)}")
    address, last = address_reader(operands[0]), instruction.operands[-1]
    number = reader(Literal(1) if isinstance(last, Address) else last, "u32")
    if what in ("try_wait", "test_wait") and "parity" in rest:
        return _wait(instruction, address, number)
    steps = {"init": _init, "inval": _invalidate, "arrive": _arrive, "expect_tx": _expect}
    step = _arrive_and_expect if "expect_tx" in rest else steps[what]

    def execute(state: State) -> None:
        places, numbers = address(state), state.per_lane(number(state))
        for lane in np.arange(state.num_lanes)[state.active_lanes()]:
            step(state, int(state.warp_id[lane]), int(places[lane]), int(numbers[lane]))

    return execute


def mbarrier_at(state: State, warp: int, address: int) -> MemoryBarrier:
    """The one at an address of the warp's block; the warp must know that it is initialised."""
    state.shared.load(np.array([address]), np.array([warp]), OBJECT_BYTES)
    found = state.mbarriers.get((warp // state.shared.num_warps, address))
    if found is None:
        raise EmulationError(f"no mbarrier is initialised at {address:,} of shared memory")
    return found


def _touch(state: State, warp: int, address: int) -> None:
    """A write to the object's bytes, of another value than is there.

    No fence.proxy.async is asked for: Triton 3.7.1 initialises mbarriers that it never uses where it puts a tile.
    """
    place, warps = np.array([address]), np.array([warp])
    block = state.shared.bytes.reshape(-1, state.shared.stride)[warp // state.shared.num_warps]
    state.shared.store(place, warps, ~block[None, address : address + OBJECT_BYTES])
    state.shared.fence_bytes(place, warps, OBJECT_BYTES)


def _init(state: State, warp: int, address: int, count: int) -> None:
    _touch(state, warp, address)
    block, num_warps = warp // state.shared.num_warps, state.shared.num_warps
    before = state.mbarriers.get((block, address))
    agent = before.agent if before else num_warps + sum(owner == block for owner, _ in state.mbarriers)
    if agent >= AGENTS - 1:
        raise NotCoveredError(f"more than {AGENTS - 1 - num_warps} mbarriers")
    phase = before.phase + before.phase % 2 if before else 0  # the agent's clock goes on
    state.mbarriers[block, address] = MemoryBarrier(agent, count, count, phase=phase)


def _invalidate(state: State, warp: int, address: int, _: int) -> None:
    mbarrier_at(state, warp, address)
    _touch(state, warp, address)


def _arrive(state: State, warp: int, address: int, count: int) -> None:
    found = mbarrier_at(state, warp, address)
    np.maximum(found.arriving, state.shared.release(warp), out=found.arriving)
    found.missing -= count
    found.settle(state)


def _expect(state: State, warp: int, address: int, num_bytes: int) -> None:
    mbarrier_at(state, warp, address).missing_bytes += num_bytes


def _arrive_and_expect(state: State, warp: int, address: int, num_bytes: int) -> None:
    _expect(state, warp, address, num_bytes)
    _arrive(state, warp, address, 1)


def _wait(instruction: Instruction, address, parity) -> Execute:
    """Warps whose phase has not ended stall, and try again when it has."""
    target = instruction.operands[0]

    def execute(state: State) -> None:
        places, parities = address(state), state.per_lane(parity(state))
        for warp in state.active_warps():
            found = mbarrier_at(state, int(warp), int(places[WARP * warp]))
            if found.phase % 2 == parities[WARP * warp] % 2:  # Triton gives -1 for 1, too
                state.stalled[warp] = RETRY
                found.waiting.append(int(warp))
            else:
                state.shared.acquire(int(warp), found.knowledge)
        state.write(target, np.ones(state.num_lanes, bool))

    return execute


BUILDERS = {"mbarrier": mbarrier}
