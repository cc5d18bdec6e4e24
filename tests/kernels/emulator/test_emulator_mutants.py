"""Planted bugs in the emulator's rules of order, each of which the tests of its module must notice.

(A rule that is too weak is silent; an instruction that computes something else shows in every kernel.)
"""

import pytest

from tests.kernels.emulator import (
    test_matrix,
    test_mbarriers,
    test_memory,
    test_warps,
)
from tests.mutation import KillTable, Mutant

MUTANTS = {
    ("memory", test_memory): [
        ("one element past the end", "(offsets + num_bytes > len(storage.data))", "(offsets + num_bytes > len(storage.data) + 4)"),
        ("blocks write over each other", 'before, 0), mine, storage, granules, "writes over what {} wrote")', '0 * before, 0), mine, storage, granules, "")'),
        ("blocks write at once", "if (lost := units[places] != new).any():", "if False:"),
        ("blocks change what others read", "np.where(changed, readers, 0)", "np.where(changed, 0 * readers, 0)"),
        ("the last reader alone", "record[granules[record[granules] != marks]] = SEVERAL", "pass"),
        ("the same value is another", "np.repeat(changed, width // self._granule, 1)", "np.repeat(changed | True, width // self._granule, 1)"),
        ("atomics order nothing", "                    known |= released\n", ""),
        ("relaxed atomics order", "                if orders:\n", "                if True:\n"),
        ("the first byte is written", "offsets[:, None] + np.arange(num_bytes)].all(1)", "offsets[:, None]].all(1)"),
        ("alignment not looked at", "addresses & np.uint64(num_bytes - 1)", "addresses & np.uint64(0)"),
        ("a read needs no barrier", "if (self._known[warps[:, None], written % AGENTS] < written // AGENTS).any():", "if (written == ON_ITS_WAY).any():"),
        ("one reader is remembered", "self._read[granules, (warps % self.num_warps)[:, None]] = self._clocks(warps)[:, None]", "self._read[granules] = 0\n        self._read[granules, (warps % self.num_warps)[:, None]] = self._clocks(warps)[:, None]"),
        ("unequal values are none", "if (memory[rows] != data).any():", "if False:"),
        ("copies land at once", "        self._written[granules] = ON_ITS_WAY\n", ""),
        ("atomics at once", "units[place] = update(old[thread], values[thread])", "units[place] = values[thread]"),
    ],
    ("memory", test_matrix): [
        ("products need no fence", "if self._unfenced[granules].any():", "if False:"),
        ("products need no barrier", "if (known < written // AGENTS).any():", "if (written == ON_ITS_WAY).any():"),
        ("a product's tiles are free at once", "self._in_use[mine] += 1", "self._in_use[mine] += 0"),
        ("a fence for all warps", "np.where(fencing[:, None], self._known, -1)", "self._known"),
    ],
    ("matrix", test_matrix): [
        ("B as A", "right = np.stack([_runs(f(state), kind_b, state.num_lanes)", "right = np.stack([_runs(f(state), kind_a, state.num_lanes)"),
        ("fences of other warpgroups", "if state.overlaps(lanes)}", "}"),
        ("a sum is handed over by the first warp", "done = lanes[unfinished[lanes] == 0]", "done = lanes"),
        ("A transposed as B", "Tile(64, kind_a, transposed[0])", "Tile(64, kind_a, transposed[-1])"),
        ("a product is a use by threads", "state.unfenced = used ", "pass "),
        ("sum always kept", "old = np.where(keeps, sums[lanes].view(np.float32), np.float32(0))", "old = sums[lanes].view(np.float32)"),
        ("copies see what is written later", "    changed = register.copy()\n", "    changed = register\n"),
        ("a product's reading leaves no trace", "            state.shared.has_read(granules[entries // 4], self.warps[entries])\n", ""),
        ("tiles free when the first warp has waited", "np.flatnonzero(self.num_waiting == 0)", "np.flatnonzero(self.num_waiting < 4)"),
    ],
    ("warps", test_warps): [
        ("lanes not counted in fives of bits", "shift &= 31", "shift &= 63"),
        ("some threads at a barrier", "if state.active is not None and not _agree(state.active.reshape(-1, WARP)):\n            raise EmulationError(", "if False:\n            raise EmulationError("),
        ("named barriers taken for all", "(sizes == state.num_threads).all()", "True"),
        ("arrivals learn", "waiting, missing = [*waiting, warp] if waits else waiting, missing - WARP", "waiting, missing = [*waiting, warp], missing - WARP"),
        ("arrivals tell nothing", "np.maximum(known, state.shared.release(warp))", "np.maximum(known, state.shared.release(warp) if waits else 0)"),
    ],
    ("mbarriers", test_mbarriers): [
        ("all phases are the same", "if found.phase % 2 == parities[WARP * warp] % 2:", "if found.phase == 0:"),
        ("parities are 0 and 1", "== parities[WARP * warp] % 2:", "== parities[WARP * warp]:"),
        ("bytes do not count", "if self.missing or self.missing_bytes:", "if self.missing:"),
        ("arrivals do not count", "if self.missing or self.missing_bytes:", "if self.missing_bytes:"),
        ("too many arrivals", "if self.missing < 0:", "if False:"),
        ("the next phase expects nothing", "self.phase, self.missing = self.phase + 1, self.expected", "self.phase, self.missing = self.phase + 1, 1"),
        ("waits learn of arrivals to come", "acquire(int(warp), found.knowledge)", "acquire(int(warp), found.arriving)"),
        ("initialised without a barrier", "    state.shared.load(np.array([address]), np.array([warp]), OBJECT_BYTES)\n", ""),
    ],
    ("bulk", test_mbarriers): [
        ("nothing is outside", 'inside = inside & (along >= 0) & (along < tensor["global_dim"][axis])', "inside = inside & (along >= 0)"),
        ("nothing is before the first", "(along >= 0) & ", ""),
        ("boxes are written by threads", "self.data, is_bulk=True", "self.data"),
        ("a store's bytes are free", "    state.bulk_stores.add(BoxStore(granules, owner), owner)\n", ""),
    ],
    ("movement", test_memory): [
        ("wait_all waits for groups alone", "    state.copies.commit(state.active_warps())  # copies without a group, too\n", ""),
        ("waits for one group fewer", "return lambda state: state.copies.wait(state, keep)", "return lambda state: state.copies.wait(state, keep + 1)"),
    ],
    ("movement", test_matrix): [
        ("copies are uses", "if not is_used:", "if False:"),
    ],
    ("state", test_memory): [
        ("waits for all groups", "self._num_groups[warps] - keep", "self._num_groups[warps]"),
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
