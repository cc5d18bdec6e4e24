"""Runs a program: all threads of many blocks in lock-step, one numpy operation per instruction.

Threads of a warp share one program counter, as far as Triton's kernels need: a branch that divides a warp is refused.
Warps may diverge. Those with the lowest program counter run until they branch, stall or reach others' counter, so warps
that leave a loop early wait behind it, and bulk copies arrive when no warp can go on without. Given a seed, warps run
and copies arrive in a random order instead, from one instruction that orders them to the next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from ptx_emulator import bulk, matrix, mbarriers, movement, warps
from ptx_emulator.errors import EmulationError, NotCoveredError, RaceError
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.numbers import bits_of
from ptx_emulator.ptx import Instruction, Program
from ptx_emulator.state import RETRY, RUNNING, WARP, Builder, Execute, Observer, State, reader

BUILDERS: dict[str, Builder] = movement.BUILDERS | warps.BUILDERS | matrix.BUILDERS | mbarriers.BUILDERS | bulk.BUILDERS
STALLING = ("bar", "barrier", "mbarrier")
CONTROL = ("bra", "ret", "exit", "trap")
LANES = 8192  # threads in one batch of blocks: enough to make numpy's calls cheap, little enough for the caches
MAX_STEPS = 20_000_000


class Machine:
    """A program made executable, for any number of launches.

    Args:
        builders: By opcode: makes an instruction executable.
        observer: Told of the program's memory requests and matrix products.
        seed: Of the order of warps and of the arrival of bulk copies; None: see above.

    Attributes:
        executed: Instructions by opcode, counted once per warp.
    """

    def __init__(
        self,
        program: Program,
        builders: Mapping[str, Builder] = BUILDERS,
        observer: Observer | None = None,
        seed: int | None = None,
    ) -> None:
        self.program = program
        self._random = None if seed is None else np.random.default_rng(seed)
        # The four warps of a warpgroup go on together from here to its products; the hardware awaits them there.
        self._gathers = np.array([i.name == "wgmma" and i.modifiers[0] == "fence" for i in program.instructions])
        self._orders = self._gathers | np.array(
            [i.name in (*STALLING, "cp") or "wait_group" in i.modifiers for i in program.instructions]
        )
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
            shared = SharedMemory(len(ids), shared_bytes, self.granule(), max(1, self.program.num_threads // WARP))
            self.run(State(self.program, ids, grid, by_name, memory, shared, self._observer))

    def granule(self, space: str = "shared") -> int:
        """Bytes of the narrowest access to shared or global memory, at most 4."""
        widths = [
            bits_of(i.modifiers[-1]) // 8
            for i in self.program.instructions
            if i.name in ("ld", "st", "atom", "red") and space in "".join(i.modifiers)
        ]
        if space == "global" and any("tensor" in i.modifiers for i in self.program.instructions):
            return 1  # elements of a box may be bytes
        return min([4, *widths])

    def run(self, state: State) -> None:
        """Run the blocks of `state` to their ends."""
        end = len(self.program.instructions)
        counters = np.zeros(len(state.stalled), np.int64)
        for _ in range(MAX_STEPS):
            ready = self._ready(state, counters)
            if not ready.any():
                if (counters >= end).all():
                    return self._check_end(state)
                self._land(state, counters)
                continue
            here, mine, limit = self._choose(ready, counters)
            state.active = None if mine.all() else np.repeat(mine, WARP)
            counters[mine] = self._straight_on(state, here, limit)
            if state.landing and self._random is not None and self._random.random() < 0.5:
                self._land(state, counters)
        raise EmulationError(f"no end after {MAX_STEPS:,} branches")

    def _ready(self, state: State, counters: np.ndarray) -> np.ndarray:
        """The warps that can go on: not stalled, and with their whole warpgroup where that is needed."""
        ready = (counters < len(self._gathers)) & (state.stalled == RUNNING)
        if self._gathers.any() and state.num_threads % (4 * WARP) == 0:
            gathering = self._gathers[np.minimum(counters, len(self._gathers) - 1)]
            groups = counters.reshape(-1, 4)
            ready &= ~gathering | np.repeat((groups == groups[:, :1]).all(1), 4)
        return ready

    def _choose(self, ready: np.ndarray, counters: np.ndarray) -> tuple[int, np.ndarray, int]:
        """The counter at which warps go on, which ones, and the counter of others at which to stop."""
        if self._random is None:
            here = int(counters[ready].min())
            later = counters[ready & (counters > here)]
            return here, ready & (counters == here), int(later.min()) if len(later) else len(self._gathers)
        leader = self._random.choice(np.flatnonzero(ready))
        here, drawn = int(counters[leader]), self._random.random(len(ready)) < 0.5
        drawn[leader] = True
        if self._gathers[here] and len(ready) % 4 == 0:
            drawn = np.repeat(drawn.reshape(-1, 4).any(1), 4)
        return here, ready & drawn & (counters == here), len(self._gathers)

    def _land(self, state: State, counters: np.ndarray) -> None:
        """Let a bulk copy arrive. If none is on its way, the warps that are left wait for ever."""
        if not state.landing:
            warp = int(np.flatnonzero(counters < len(self._gathers))[0])
            at = int(counters[warp]) - (state.stalled[warp] not in (RUNNING, RETRY))
            instruction = self.program.instructions[at]
            what = f"warp {warp % state.shared.num_warps} waits for ever for what others do not do: the GPU would hang"
            raise EmulationError(what, instruction.source, instruction.text)
        state.landing.pop(0 if self._random is None else self._random.integers(len(state.landing))).land(state)

    def _check_end(self, state: State) -> None:
        if state.landing or state.bulk_stores.work:
            raise RaceError("the kernel ends while a bulk copy from or to its shared memory is on its way")

    def _straight_on(self, state: State, here: int, limit: int) -> np.ndarray | int:
        """Execute from `here` to a branch, a stall or `limit`; where each of the active warps goes on."""
        outer, first, warps = state.active, here, state.active_warps()
        instructions, stops = self.program.instructions, self._gathers if self._random is None else self._orders
        with np.errstate(all="ignore"):
            while here < limit:
                if stops[here] and here != first and not (outer is None and self._random is None):
                    return here
                instruction = instructions[here]
                self.executed[instruction.name] += len(warps)
                try:
                    if instruction.name in CONTROL:
                        return self._branch(state, instruction, here, warps)
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
                if instruction.name in STALLING and (stalled := state.stalled[warps]).any():
                    return here - (stalled == RETRY)
        return here

    def _branch(self, state: State, instruction: Instruction, here: int, warps: np.ndarray) -> np.ndarray | int:
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
        per_warp = taken.reshape(-1, WARP)[warps]
        if (per_warp != per_warp[:, :1]).any():
            raise NotCoveredError("a branch that some threads of a warp take and others do not")
        return np.where(per_warp[:, 0], target, here + 1)


def _build(instruction: Instruction, builders: Mapping[str, Builder]) -> Execute | None:
    """The function that executes the instruction; for an instruction that is not covered, a function that raises."""
    if instruction.name in CONTROL:
        return None
    why = f"the instruction {instruction.name}"
    try:
        name = "cp.async.bulk" if instruction.modifiers[:2] == ("async", "bulk") else instruction.name
        if name in builders:
            return builders[name](instruction)
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


def _batches(grid: tuple[int, int, int], size: int) -> Iterable[np.ndarray]:
    """Block ids (x, y, z) in the order in which a GPU starts them, in batches."""
    total = grid[0] * grid[1] * grid[2]
    for first in range(0, total, size):
        flat = np.arange(first, min(first + size, total))
        yield np.stack([flat % grid[0], flat // grid[0] % grid[1], flat // (grid[0] * grid[1])], 1)
