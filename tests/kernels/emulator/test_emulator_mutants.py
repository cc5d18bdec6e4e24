"""Planted bugs in the emulator, each of which the tests of its module must notice."""

import pytest

from tests.kernels.emulator import (
    test_arithmetic,
    test_machine,
    test_matrix,
    test_memory,
    test_movement,
    test_ptx,
    test_traffic,
    test_warps,
)
from tests.mutation import KillTable, Mutant

MUTANTS = {
    ("arithmetic", test_arithmetic): [
        ("operands not flushed", "flush(f(state)) if kind == flushed else f(state)", "f(state)"),
        ("ordered with NaN", "return COMPARISONS[comparison](x, y) & ~unordered", "return COMPARISONS[comparison](x, y)"),
        ("NaN wins", "extreme(np.fmin, np.minimum)", "extreme(np.minimum, np.minimum)"),
        ("shift wraps around", "np.where(by >= bits, a.dtype.type(0), a << np.minimum(by, bits - 1).astype(a.dtype))",
         "a << (by & bits - 1).astype(a.dtype)"),
        ("funnel never clamps", '(np.minimum(by, 32) if "clamp" in how.modifiers else by & 31)', "(by & 31)"),
        ("bfe with the sign of the word", "unused = _as(64, wide) - length", "unused = _as(64 - bits, wide) + 0 * length"),
        ("quotient rounds down", "return floor + ((floor * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)", "return floor"),
        ("fma rounds twice", "return a.astype(np.float64) * b + c", "return a * b + c"),
        ("NaN becomes large", "np.where(too_large | np.isnan(rounded), 0,", "np.where(too_large, 0,"),
        ("integers through fp64", 'np.float32 if to == "f32" else np.float64', "np.float64"),
    ],
    ("memory", test_memory): [
        ("one element past the end", "(offsets + num_bytes > len(buffer))", "(offsets + num_bytes > len(buffer) + 4)"),
        ("alignment not looked at", "addresses & np.uint64(num_bytes - 1)", "addresses & np.uint64(0)"),
        ("blocks share", "return starts + blocks * self.stride", "return starts + 0 * blocks"),
        ("a read needs no barrier", "((written >= epoch_start) & (written != stamp)).any()", "(written == ON_ITS_WAY).any()"),
        ("readers of one access forgotten", "        if shared.any():\n", "        if False:\n"),
        ("unequal values are none", "if (memory[rows] != data).any():", "if False:"),
        ("copies land at once", "        self._written[granules] = ON_ITS_WAY\n", ""),
        ("a barrier of nobody", "self.epoch[blocks] += 1", "self.epoch[blocks] += 0"),
        ("one slot for all", "slot = self._slot_of[storage.data_ptr()] = len(self._buffers)", "slot = self._slot_of[storage.data_ptr()] = 0"),
        ("atomics at once", "units[place] = update(old[thread], values[thread])", "units[place] = values[thread]"),
    ],
    ("memory", test_matrix): [
        ("products need no fence", "if self._unfenced[granules].any():", "if False:"),
        ("products need no barrier", "if (written >= 64 * self.epoch[blocks][:, None]).any():", "if False:"),
        ("a product's tiles are free at once", "self._multiplying[mine] += 1", "self._multiplying[mine] += 0"),
        ("a product's reading leaves no trace", "self._stamp_read(mine, self.epoch[block] * 64, self.epoch[block] * 64 + warp)", "pass"),
    ],
    ("matrix", test_matrix): [
        ("columns for rows", "matrices = matrices.transpose(0, 1, 3, 2)", "matrices = matrices"),
        ("all rows from matrix 0", "np.arange(8 * num_matrices)).reshape(-1)", "np.arange(8 * num_matrices) % 8).reshape(-1)"),
        ("halves of k swapped", "halves.transpose(0, 2, 3, 1, 4, 5)", "halves[:, ::-1].transpose(0, 2, 3, 1, 4, 5)"),
        ("no swizzle", "return address ^ ((address >> 7 & chunks) << 4)", "return address"),
        ("strides swapped", "for first in (0, 16, 32))", "for first in (0, 32, 16))"),
        ("A transposed as B", "Tile(64, 16, transposed[0])", "Tile(64, 16, transposed[-1])"),
        ("a product is a use by threads", "state.unfenced = used ", "pass "),
        ("sum always kept", "old = np.where(keeps, sums[lanes].view(np.float32), np.float32(0))", "old = sums[lanes].view(np.float32)"),
        ("copies see what is written later", "    changed = register.copy()\n", "    changed = register\n"),
    ],
    ("traffic", test_traffic): [
        ("larger sectors", "SECTOR = 32", "SECTOR = 64"),
        ("sectors across warps", "_distinct(warps, places // SECTOR)", "_distinct(0 * warps, places // SECTOR)"),
        ("least rounded down", "-(-np.bincount(items) * key[2] // SECTOR)", "np.bincount(items) * key[2] // SECTOR"),
        ("examples of all blocks", "state.block_of[lanes] == state.block_of[lanes[0]]", "lanes >= 0"),
        ("whole warps for wide accesses", "lanes // (WARP // max(1, key[2] // BANK_BYTES))", "lanes // WARP"),
        ("the mean bank", "np.maximum.reduceat(busy, first).sum()", "np.add.reduceat(busy, first).sum()"),
    ],
    ("warps", test_warps): [
        ("lanes not counted in fives of bits", "shift &= 31", "shift &= 63"),
        ("up is down", '"up": lane - shift, "down": lane + shift', '"up": lane + shift, "down": lane - shift'),
        ("any for all", "said = getattr(bits, mode)(1)", "said = bits.any(1)"),
        ("some threads at a barrier", "if state.active is not None and not whole_blocks(state):", "if False:"),
        ("named barriers taken for all", "if rest or not isinstance(first, Literal):", "if False:"),
    ],
    ("movement", test_movement): [
        ("vector backwards", "for register, column in zip(targets, columns, strict=True):", "for register, column in zip(targets, columns[::-1], strict=True):"),
        ("parameters cut off", "state.parameters[source.base.name] & (1 << bits) - 1", "state.parameters[source.base.name] & (1 << 32) - 1"),
    ],
    ("movement", test_memory): [
        ("wait_all waits for groups alone", "    state.copies.commit(state.blocks)  # copies without a group, too\n", ""),
        ("masks do not mask", "state.observer.access(state, instruction, lanes, addresses, width", "lanes = slice(None)\n        addresses = address(state)[lanes]\n        state.observer.access(state, instruction, lanes, addresses, width"),
        ("waits for one group fewer", "return lambda state: state.copies.wait(state, keep)", "return lambda state: state.copies.wait(state, keep + 1)"),
    ],
    ("movement", test_matrix): [
        ("copies are uses", "if not is_used:", "if False:"),
    ],
    ("state", test_movement): [
        ("lanes that are off are written", "if self.active is not None:\n            old", "if False:\n            old"),
        ("warps counted over all blocks", "self.warp_of = self.thread_of // WARP", "self.warp_of = lanes // WARP"),
    ],
    ("state", test_memory): [
        ("waits for all groups", "self._num_groups[state.blocks] - keep", "self._num_groups[state.blocks]"),
    ],
    ("machine", test_machine): [
        ("guards ignored in branches", "^ instruction.guard_negated)\n        if instruction.name", "^ False)\n        if instruction.name"),
        ("divided blocks go with their first thread", "if (per_block != per_block[:, :1]).any():", "if False:"),
        ("x and y swapped", "flat % grid[0], flat // grid[0] % grid[1]", "flat // grid[0] % grid[1], flat % grid[0]"),
        ("traps whatever the guard says", "if (taken if state.active is None else taken & state.active).any():", "if True:"),
        ("the line forgotten", "raise type(error)(error.message, instruction.source, instruction.text) from None", "raise"),
    ],
    ("ptx", test_ptx): [
        ("negated guards", 'match[1] == "!"', "False"),
        ("offsets lost", 'int(offset or "0", 0)', "0"),
        ("the last file's line", "where[1] if where else ''", "where[1] if where else 'x.py:1'"),
        ("floats in decimal", "return Literal(int(text[2:], 16))", "return Literal(int(text[3:], 16))"),
    ],
}  # fmt: skip


def run_all(tests):
    """All checks of a module of tests, on one module of the emulator."""

    def check(module):
        for one in tests.CHECKS:
            one(module)

    return check


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        pytest.param(Mutant(name, f"ptx_emulator.{module}", old, new), run_all(tests), id=f"{module}: {name}")
        for (module, tests), rows in MUTANTS.items()
        for name, old, new in rows
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_mutants_are_killed(mutant, check):
    KillTable.record(mutant, check)
