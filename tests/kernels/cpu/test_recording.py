"""Recordings: many launches repeated by one call, on the same tensors."""

import threading

import pytest
import torch

import triton_on_cpu
from tests.kernels.cpu import programs
from tests.kernels.planting import noticing
from tests.mutation import is_killed
from triton_on_cpu import TritonOnCpuError, recording

pytest.importorskip("triton", reason="not run here: no triton")


def in_child(mutant, check):
    """What the check says of a mutant, or (None) of the module itself."""

    def run(module):
        programs.with_driver(lambda: check(module))

    return is_killed(mutant, run) if mutant else run(recording)


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
    triton_on_cpu.install()  # again: the kernels that were compiled before are recorded all the same
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


def check_operations(module):
    """torch's operations are repeated in their place: new results, changes in place, copies; views are not."""
    x, ids, table = torch.randn(4, 6), torch.tensor([2, 0]), torch.randn(3, 12)
    with module.record(torch_operations=True) as step:
        rows = torch.nn.functional.embedding(ids, table)
        programs.double[(1,)](rows, y := torch.empty(24), 24, BLOCK=32)
        y.add_(1)
        columns = x.t().contiguous()
        same = y.view(4, 6).contiguous()
        programs.double[(1,)](columns, z := torch.empty(24), 24, BLOCK=32)
        halves = torch.cat([same, z.view(4, 6)]).split(4)
        ended = halves[1].to(torch.float64)
        counts = torch.zeros(3).add_(1)
        lowest = x.min(dim=0)
    assert len(step) == 2

    def check():
        assert torch.equal(rows, table[ids])
        assert torch.equal(y, 2 * table[ids].flatten() + 1)
        assert torch.equal(halves[0], y.view(4, 6))
        assert torch.equal(ended, 2 * x.t().reshape(4, 6).double())
        assert torch.equal(counts, torch.ones(3)), "zeros are made anew"
        assert torch.equal(lowest.values, x.min(dim=0).values)
        assert torch.equal(lowest.indices, x.min(dim=0).indices)

    check()
    for _ in range(2):
        x.copy_(torch.randn(4, 6))
        ids.copy_(torch.randint(3, (2,)))
        torch.full((5000,), float("nan"))
        step.replay()
        check()


@torch.inference_mode()  # in which torch does not tell that `contiguous` clones
def check_unrepeatable(module):
    """What Python learns of a tensor's numbers would be of the first time; copies that pass for views would be too."""
    x = torch.ones(2, 3)
    for learn in (lambda: x.sum().item(), lambda: bool(x.sum() > 1), lambda: x.nonzero()):
        with pytest.raises(TritonOnCpuError, match="cannot be recorded"), module.record(torch_operations=True):
            learn()
    for copy in (x.t().contiguous, x.double, x.t().flatten, lambda: x.t().reshape(6), lambda: x.mul_(2)):
        with pytest.raises(TritonOnCpuError, match="while launches are recorded"), module.record():
            copy()
    assert (x == 1).all()
    with module.record():
        assert x.contiguous() is x
        x.flatten()
        x.float()


def check_threads(module):
    """A recording has its own thread's launches only; two threads may record at once."""
    x, y = torch.ones(8), torch.ones(8)
    steps = {}

    def other():
        programs.double[(1,)](y, y, 8, BLOCK=8)
        with module.record() as steps["other"]:
            programs.double[(1,)](y, y, 8, BLOCK=8)
            programs.double[(1,)](y, y, 8, BLOCK=8)

    with module.record() as step:
        programs.double[(1,)](x, x, 8, BLOCK=8)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        programs.double[(1,)](x, x, 8, BLOCK=8)
    assert (len(step), len(steps["other"])) == (2, 2)
    step.replay()
    assert (x == 16).all()
    assert (y == 8).all()
    steps["other"].replay()
    assert (y == 32).all()


CHECKS = [check_replays, check_more_recordings, check_refusals, check_operations, check_unrepeatable, check_threads]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_recording(compiling, check):
    compiling.call(in_child, None, check)


MUTANTS = {("recording",): [
    ("each launch has the last one's values", "self._list = list_of(self.packed)", "self._list = list_of(self.packed[-1:] * len(self.packed))", check_replays),
    ("torch may compute", "            if not self._is_recorded:\n", "            if False:\n", check_refusals),
    ("torch may write", "if not self._is_recorded and is_mutable and", "if False and", check_unrepeatable),
    ("a recording never ends", "    finally:\n        driver.of_thread.recording = None", "    finally:\n        pass", check_more_recordings),
    ("recordings within recordings", "if driver.of_thread.recording is not None:", "if False:", check_refusals),
    ("checked launches recorded", "    if driver.checked:\n", "    if False:\n", check_refusals),
    ("schemas tell views from copies", "or _address(leaf) not in before]", "or not (function.is_view or _address(leaf) in before)]", check_unrepeatable),
    ("changes in place once", "if fresh or is_mutable:", "if fresh:", check_operations),
    ("launches join those before an operation", "if not isinstance(last, _Launches):", "if last is None:", check_operations),
    ("numbers for Python", "if has_free_shape or not all(isinstance(results[i], Tensor) for i in fresh)", "if has_free_shape", check_unrepeatable),
    ("shapes from numbers", "if has_free_shape or not", "if not", check_unrepeatable),
]}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS, "triton_on_cpu", in_child)
