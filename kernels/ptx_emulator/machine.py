"""Runs a program: all threads of many blocks in lock-step, one numpy operation per instruction.

Threads of a block share one program counter, as far as Triton's kernels need: a branch that divides a block is refused.
Blocks may diverge. The blocks with the lowest program counter run until they branch or reach other blocks' counter, so
blocks that leave a loop early wait behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ptx_emulator import matrix, movement, warps
from ptx_emulator.errors import EmulationError, NotCoveredError
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.numbers import bits_of
from ptx_emulator.ptx import Instruction, Program
from ptx_emulator.state import Builder, Execute, Observer, State, reader

BUILDERS: dict[str, Builder] = movement.BUILDERS | warps.BUILDERS | matrix.BUILDERS
CONTROL = ("bra", "ret", "exit", "trap")
LANES = 8192  # threads in one batch of blocks: enough to make numpy's calls cheap, little enough for the caches
MAX_STEPS = 20_000_000


class Machine:
    """A program made executable, for any number of launches.

    Args:
        builders: By opcode: makes an instruction executable.
        observer: Told of the program's memory requests and matrix products.

    Attributes:
        executed: Instructions by opcode, counted once per warp.
    """

    def __init__(
        self, program: Program, builders: Mapping[str, Builder] = BUILDERS, observer: Observer | None = None
    ) -> None:
        self.program = program
        self.executed: Counter[str] = Counter()
        self._observer = observer
        self._execute = [_build(instruction, builders) for instruction in program.instructions]
        self._guards = [None if i.guard is None else reader(i.guard, "pred") for i in program.instructions]

    def launch(
        self, grid: tuple[int, int, int], parameters: list[int], memory: GlobalMemory, shared_bytes: int
    ) -> None:
        """Run every block of the grid.

        Args:
            parameters: Their bits, in order; the program's last ones may be missing (unused scratch space).

        Raises:
            EmulationError: With the line of Python, the instruction, and a block that executed it.
        """
        names = [name for name, _ in self.program.parameters]
        by_name = dict(zip(names, parameters, strict=False)) | dict.fromkeys(names[len(parameters) :], 0)
        num_blocks = max(1, LANES // self.program.num_threads)
        for ids in _batches(grid, num_blocks):
            shared = SharedMemory(len(ids), shared_bytes, granule=self.granule())
            self.run(State(self.program, ids, grid, by_name, memory, shared, self._observer))

    def granule(self) -> int:
        """Bytes of the narrowest access to shared memory, at most 4."""
        widths = [
            bits_of(i.modifiers[-1]) // 8
            for i in self.program.instructions
            if i.name in ("ld", "st") and "shared" in "".join(i.modifiers)
        ]
        return min([4, *widths])

    def run(self, state: State) -> None:
        """Run the blocks of `state` to their ends."""
        end = len(self.program.instructions)
        counters = np.zeros(state.num_blocks, np.int64)
        for _ in range(MAX_STEPS):
            here = int(counters.min())
            if here >= end:
                return
            mine = counters == here
            others = counters[~mine]
            if len(others):
                state.blocks, state.active = np.flatnonzero(mine), np.repeat(mine, state.num_threads)
                limit = int(others.min())
            else:
                state.blocks, state.active, limit = slice(None), None, end
            counters[mine] = self._straight_on(state, here, limit)
        raise EmulationError(f"no end after {MAX_STEPS:,} branches")

    def _straight_on(self, state: State, here: int, limit: int) -> np.ndarray | int:
        """Execute from `here` to a branch or `limit`; where each of the active blocks goes on."""
        outer = state.active
        instructions, warps_here = self.program.instructions, _count(state) * (state.num_threads // 32 or 1)
        with np.errstate(all="ignore"):
            while here < limit:
                instruction = instructions[here]
                self.executed[instruction.name] += warps_here
                try:
                    if instruction.name in CONTROL:
                        return self._branch(state, instruction, here)
                    guard = self._guards[here]
                    if guard is None:
                        self._execute[here](state)
                    else:
                        state.active = _guarded(guard(state), instruction.guard_negated, outer, state.num_lanes)
                        if state.active is None or state.active.any():
                            self._execute[here](state)
                        state.active = outer
                except EmulationError as error:
                    raise type(error)(error.message, instruction.source, instruction.text) from None
                except (NotImplementedError, KeyError, TypeError, ValueError) as error:
                    message = f"{type(error).__name__}: {error}"
                    raise NotCoveredError(message, instruction.source, instruction.text) from error
                here += 1
        return here

    def _branch(self, state: State, instruction: Instruction, here: int) -> np.ndarray | int:
        target = len(self.program.instructions)
        if instruction.name == "bra":
            target = self.program.labels[instruction.operands[0].name]
        if instruction.guard is None and instruction.name != "trap":
            return target
        guard = self._guards[here]
        taken = state.per_lane(np.bool_(True) if guard is None else guard(state) ^ instruction.guard_negated)
        if instruction.name == "trap":
            if (taken if state.active is None else taken & state.active).any():
                raise EmulationError("the kernel trapped (an assertion on the device failed)")
            return here + 1
        per_block = taken.reshape(state.num_blocks, -1)[state.blocks]
        if (per_block != per_block[:, :1]).any():
            raise NotCoveredError("a branch that some threads of a block take and others do not")
        return np.where(per_block[:, 0], target, here + 1)


def _build(instruction: Instruction, builders: Mapping[str, Builder]) -> Execute | None:
    """The function that executes the instruction; for an instruction that is not covered, a function that raises."""
    if instruction.name in CONTROL:
        return None
    why = f"the instruction {instruction.name}"
    try:
        if instruction.name in builders:
            return builders[instruction.name](instruction)
    except (NotImplementedError, KeyError, IndexError, ValueError, AttributeError) as error:
        why = f"this form ({error})"
    except NotCoveredError as error:
        why = error.message

    def refuse(state: State) -> None:
        raise NotCoveredError(why)

    return refuse


def _guarded(guard: np.ndarray, negated: bool, outer: np.ndarray | None, num_lanes: int) -> np.ndarray | None:
    active = np.broadcast_to(guard, num_lanes) ^ negated
    if outer is not None:
        return active & outer
    return None if active.all() else active


def _count(state: State) -> int:
    return state.num_blocks if isinstance(state.blocks, slice) else len(state.blocks)


def _batches(grid: tuple[int, int, int], size: int) -> Iterable[np.ndarray]:
    """Block ids (x, y, z) in the order in which a GPU starts them, in batches."""
    total = grid[0] * grid[1] * grid[2]
    for first in range(0, total, size):
        flat = np.arange(first, min(first + size, total))
        yield np.stack([flat % grid[0], flat // grid[0] % grid[1], flat // (grid[0] * grid[1])], 1)
