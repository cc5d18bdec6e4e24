"""Checked launches: what a learner reads after a wrong access, an endless loop or a mistake of language."""

import inspect
import os
import signal
import sys
import threading
import time

import pytest
import torch

import triton_on_cpu
from tests.kernels.cpu import programs, small_kernels
from tests.kernels.cpu.harness import in_child
from tests.kernels.planting import noticing
from tests.mutation import is_killed
from triton_on_cpu import OutOfBoundsError, TimeLimitError, launch

pytest.importorskip("triton", reason="not run here: no triton")


def with_driver(check):
    programs.with_driver(check, threads=2, limit_s=None if check is check_switching else 30)


def line_of(kernel, text):
    """Where a statement of programs.py is."""
    lines, first = inspect.getsourcelines(kernel.fn)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"programs.py, line {number}: {text}"


def check_reads_and_writes():
    """Kernel, program, argument, index, shape, line and usual cause; what is wrong is not done."""
    x, whole = torch.ones(1000), torch.zeros(1100)
    out = whole[:1000]
    with pytest.raises(OutOfBoundsError) as caught:
        programs.no_mask[(8,)](x, out, 1000, BLOCK=128)
    message = str(caught.value)
    assert message.startswith(
        "no_mask, program (7, 0, 0) reads x_ptr[1000], outside of x_ptr, which has shape [1000] and"
    )
    assert line_of(programs.no_mask, "x = tl.load(x_ptr + offs)") in message
    assert "this line has no mask" in message
    with pytest.raises(OutOfBoundsError) as caught:
        programs.no_mask_of_a_store[(8,)](x, out, 1000, BLOCK=128)
    message = str(caught.value)
    assert message.startswith("no_mask_of_a_store, program (7, 0, 0) writes out_ptr[1000], outside of out_ptr")
    assert (whole[1000:] == 0).all(), "the store was left out"
    with pytest.raises(OutOfBoundsError, match=r"updates out_ptr\[7\], outside of out_ptr, which has shape \[7\]"):
        programs.count[(1,)](torch.full((8,), 7), torch.zeros(7, dtype=torch.int32), 8, BLOCK=8)
    programs.no_mask[(8,)](torch.ones(1024), whole[:1024], 1000, BLOCK=128)
    assert (whole[:1000] == 2).all(), "and afterwards all is as ever"


def check_indices():
    """What is read or written, and what usually is the cause."""
    x, numbers, out = torch.ones(5, 10)[:, :8], torch.ones(9), torch.zeros(8)
    rows, index = torch.ones(3, 8), torch.tensor([0, 47, 48, 1])
    for kernel, grid, arguments, block, message in (
        (programs.gather, 1, (x, index, out, 4), 4, r"x_ptr \+ 48, that is \[4, 8\], outside of x_ptr, which has shape \[5, 8\] and strides \[10, 1\]"),
        (programs.gather, 1, (numbers, index - 1, out, 2), 2, r"reads x_ptr\[-1\](.|\n)*index is negative: an index tensor that holds -1"),
        (programs.gather, 1, (numbers, 9000 + index, out, 2), 2, r"reads x_ptr\[9000\](.|\n)*far outside: usually a stride is wrong"),
        (programs.gather, 1, (numbers, 9 + index, out, 1), 1, r"reads x_ptr\[9\](.|\n)*although the line may have a mask"),
        (programs.double, 1, (torch.ones(0), out, 8), 8, r"reads x_ptr\[0\](.|\n)*The tensor is empty"),
        (programs.rows, 3, (rows[:, :6], out, 9, 6), 8, r"program \(2, 0, 0\) reads x_ptr \+ 22, that is \[2, 6\]"),
        (programs.rows, 3, (rows, out, 9, 8), 8, r"although the line may have a mask(.|\n)*or a stride is another tensor's"),
    ):  # fmt: skip
        with pytest.raises(OutOfBoundsError, match=message):
            kernel[(grid,)](*arguments, BLOCK=block)
    with pytest.raises(OutOfBoundsError, match=r"writes x_ptr\[1099511627776\]"):
        programs.far[(1,)](torch.ones(3), 2**40)


def check_right_kernels():
    """Nothing right is refused: masks, strides, gathers with each element of what is there."""
    x, out = torch.randn(1000), torch.zeros(1000)
    programs.double[(8,)](x, out, 1000, BLOCK=128)
    assert torch.equal(out, x * 2)
    columns = torch.randn(6, 5).T
    programs.gather[(1,)](columns, torch.arange(29, -1, -1, dtype=torch.int32), out, 30, BLOCK=32)
    assert torch.equal(out[:30], columns.T.flatten().flip(0))
    counts = torch.zeros(7, dtype=torch.int32)
    programs.count[(4,)](torch.arange(32) % 7, counts, 32, BLOCK=8)
    assert torch.equal(counts, torch.bincount(torch.arange(32) % 7).int())
    programs.ends[(1,)](x, out, 1000, BLOCK=64)
    torch.testing.assert_close(out[0], x.sum(), rtol=1e-4, atol=1e-4)


def check_assertions():
    programs.asserts[(2,)](torch.arange(5), 5, BLOCK=4)
    with pytest.raises(triton_on_cpu.AssertionFailedError) as caught:
        programs.asserts[(2,)](torch.arange(6), 6, BLOCK=4)
    assert str(caught.value).startswith("asserts, program (1, 0, 0): device_assert failed: five is too many.")
    assert line_of(programs.asserts, "tl.device_assert(x < 5") in str(caught.value)


def check_what_is_not_supported():
    """It is said, and the process goes on."""
    with pytest.raises(triton_on_cpu.NotSupportedError, match="histogram"):
        small_kernels.histogram[(1,)](torch.zeros(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32))
    check_right_kernels()


def check_time_limit():
    x = torch.zeros(1, dtype=torch.int32)
    begin = time.monotonic()
    with triton_on_cpu.checked(time_limit_s=0.3), pytest.raises(TimeLimitError) as caught:
        programs.endless[(3,)](x, 0)
    assert 0.29 < time.monotonic() - begin < 10
    assert str(caught.value).startswith("endless over the grid (3, 1, 1) was still running after 0.3 s and was stopped")
    assert "in the loop of line " in str(caught.value)
    assert "`while` whose condition" in str(caught.value)
    programs.endless[(3,)](x, 5)
    assert x.item() == 5, "the next launch runs"
    driver = triton_on_cpu.driver.active_driver()
    driver.time_limit_s = None  # not by `checked`, which refuses it
    with pytest.raises(TypeError):
        programs.endless[(3,)](x, 1)
    assert x.item() == 5, "it failed before a program started, and the pool is free"
    driver.time_limit_s = 30
    programs.endless[(3,)](x.zero_(), 5)
    assert x.item() == 5


def check_interrupt():
    """Ctrl-C ends an endless loop long before its time is over."""
    x = torch.zeros(1, dtype=torch.int32)
    programs.endless[(3,)](x, 16)  # compiled before the signal comes
    threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        programs.endless[(3,)](x, 0)
    assert time.monotonic() - begin < 15
    x.fill_(7)
    time.sleep(0.2)
    assert x.item() == 7, "it writes no more"
    check_right_kernels()


def check_switching():
    """`checked` is for its block alone; within it other limits may hold."""
    driver = triton_on_cpu.driver.active_driver()
    with triton_on_cpu.checked():
        assert (driver.checked, driver.time_limit_s) == (True, 60)
        with triton_on_cpu.checked(time_limit_s=2):
            assert driver.time_limit_s == 2
        assert driver.checked
        with pytest.raises(OutOfBoundsError):
            programs.no_mask[(8,)](torch.ones(1000), torch.zeros(1000), 1000, BLOCK=128)
    assert (driver.checked, driver.time_limit_s) == (False, 60)
    x = torch.ones(1024)
    programs.no_mask[(8,)](x[:1000], torch.zeros(1000), 1000, BLOCK=128)  # unchecked: nothing is noticed
    programs.asserts[(2,)](torch.arange(6), 6, BLOCK=4)  # nor are assertions verified, as without Triton's debug mode


CHECKS = [
    check_reads_and_writes, check_indices, check_right_kernels, check_assertions, check_what_is_not_supported,
    check_time_limit, check_interrupt, check_switching,
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_checked(compiling, check):
    compiling.call(with_driver, check)


MUTANTS = {("checks", "launch"): [
    ("extents of what is seen", "sum((size - 1) * stride for", "sum((size - 1) for", check_right_kernels),
    ("the last byte counts twice", "return (last + 1) *", "return (last + 2) *", check_reads_and_writes),
    ("another argument", "tensor = tensors[site[\"argument\"]]", "tensor = tensors[0]", check_reads_and_writes),
    ("no time limit", "if time.monotonic() > end:", "if time.monotonic() > end + 12:", check_time_limit),
    ("time is up, and nothing said", "    if not in_time:\n", "    if False:\n", check_time_limit),
    ("an interrupted kernel goes on", "        if not finished:  # too late, or interrupted\n            stop.value = 1\n", "        if not finished and time.monotonic() > end:\n", check_interrupt),
    ("a comment is code", 'text.partition("#")[0]:', "text:", check_reads_and_writes),
    ("never negative", "    if element < 0:", "    if False:", check_indices),
]}  # fmt: skip


def noticed(mutant, check):
    def in_its_place(module):
        sys.modules[launch.__name__] = module  # where the driver finds its launcher
        try:
            if module is launch:
                with_driver(check)
            else:  # a kernel that goes on for ever ends with its process
                in_child(lambda: with_driver(check), limit_s=60)
        finally:
            sys.modules[launch.__name__] = launch

    return is_killed(mutant, in_its_place)


test_mutants_are_killed = noticing(MUTANTS, "triton_on_cpu", noticed)
