"""Recordings: many launches repeated by one call, on the same tensors."""

import pytest
import torch

import triton_on_cpu
from ptx_emulator import CompilingProcess
from tests.kernels.cpu import programs
from tests.mutation import KillTable, Mutant, is_killed
from triton_on_cpu import TritonOnCpuError

pytest.importorskip("triton", reason="not run here: no triton")

MODULE = "triton_on_cpu.recording"


@pytest.fixture(scope="module")
def compiling():
    with CompilingProcess() as process:
        yield process


def in_child(check, mutant=None):
    """What the check says of the module, or of a mutant of it."""

    def run(module):
        programs.forget()
        triton_on_cpu.install()
        try:
            check(module)
        finally:
            triton_on_cpu.uninstall()
            triton_on_cpu.set_num_threads(None)

    return is_killed(mutant, run) if mutant else run(__import__(MODULE, fromlist=["record"]))


def check_replays(module):
    """The order, each launch's own values and grid, new inputs in the same tensors, any number of threads."""
    x, out = torch.randn(1000), torch.zeros(1000)
    with module.record() as step:
        y = torch.empty(1000)
        programs.double[(8,)](x, y, 1000, BLOCK=128)
        programs.double[(4,)](y, z := torch.empty_like(y), 500, BLOCK=128)
        programs.other[(1,)](z[:500], out.view(2, 500)[1], 400, BLOCK=1024)
    want = torch.zeros(1000)
    want[500:900] = x[:400] * 12
    assert torch.equal(out, want), "launches run while they are recorded"
    assert len(step) == 3
    del y, z
    for threads in (1, 2, 4):
        triton_on_cpu.set_num_threads(threads)
        x.copy_(torch.randn(1000))
        torch.full((5000,), float("nan"))  # in memory that would have been given back
        want[500:900] = x[:400] * 12
        step.replay()
        assert torch.equal(out, want)
    x.fill_(1)
    programs.double[(8,)](x, out, 1000, BLOCK=128)
    assert len(step) == 3, "launches after it are not of it"


def check_more_recordings(module):
    """Two recordings are independent; a recording may go on, and may be empty."""
    x = torch.ones(8)
    with module.record() as empty:
        pass
    empty.replay()
    with module.record() as first:
        programs.double[(1,)](x, x, 8, BLOCK=8)
    first.replay()
    with module.record() as second:
        programs.other[(1,)](x, x, 8, BLOCK=8)
    first.replay()
    second.replay()
    assert (x == 2 * 2 * 3 * 2 * 3).all()
    with pytest.raises(ZeroDivisionError), module.record():
        raise ZeroDivisionError
    programs.double[(1,)](x, x, 8, BLOCK=8)
    with module.record() as third:
        programs.double[(1,)](x, x, 8, BLOCK=8)
    assert len(third) == 1


def check_refusals(module):
    x, out = torch.ones(8), torch.zeros(8)
    for compute in (lambda: x + 1, lambda: x.copy_(out), lambda: torch.zeros(3), lambda: torch.arange(3)):
        with pytest.raises(TritonOnCpuError, match=r"torch computes \w+ while launches are recorded"), module.record():
            compute()
    with module.record(), pytest.raises(TritonOnCpuError, match="one recording at a time"), module.record():
        pass
    with (
        triton_on_cpu.checked(),
        pytest.raises(TritonOnCpuError, match="Checked launches cannot be recorded"),
        module.record(),
    ):
        pass
    triton_on_cpu.uninstall()
    with pytest.raises(TritonOnCpuError, match=r"call triton_on_cpu\.install\(\) first"), module.record():
        pass


CHECKS = [check_replays, check_more_recordings, check_refusals]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_recording(compiling, check):
    compiling.call(in_child, check)


MUTANTS = [
    ("each launch has the last one's values", "packed[HEAD.size :], 8", "packed[HEAD.size + 8 :], 8", check_replays),
    ("grids transposed", "Launch((x, y, z), number", "Launch((z, y, x), number", check_replays),
    ("the last launch is left out", "len(self._jobs), num_threads())", "len(self._jobs) - 1, num_threads())", check_replays),
    ("torch may compute", "if name not in ALLOCATIONS and", "if False and", check_refusals),
    ("a recording never ends", "    finally:\n        driver.recording = None", "    finally:\n        pass", check_more_recordings),
    ("recordings within recordings", "if driver.recording is not None:", "if False:", check_refusals),
    ("checked launches recorded", "    if driver.checked:\n", "    if False:\n", check_refusals),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "check"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(compiling, name, old, new, check):
    mutant = Mutant(name, MODULE, old, new)
    mutant.source()
    if KillTable.only_planted:
        return
    try:
        how = compiling.call(in_child, check, mutant)
    except RuntimeError as crashed:
        how = str(crashed)
    KillTable.rows.append((MODULE, name, how))
    assert how is not None, f"mutant survived: {name}"
