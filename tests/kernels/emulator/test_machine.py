"""Control flow: loops that blocks leave at different times, branches, guards, and what is said about an error."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, NotCoveredError, machine
from ptx_emulator.memory import GlobalMemory
from ptx_emulator.ptx import parse
from tests.kernels.emulator.programs import run, text_of

COUNT_TO_BLOCK = """mov.u32 %r1, %ctaid.x;
mov.b32 %r2, 0;
mov.b32 %r3, 100;
$L__loop:
setp.ge.s32 %p1, %r2, %r1;
@%p1 bra $L__out;
add.s32 %r2, %r2, 1;
add.s32 %r3, %r3, %r1;
bra.uni $L__loop;
$L__out:
add.s32 %r4, %r2, %r3;"""


def test_loops():
    """Block i goes round i times; the others wait behind the loop, and go on together."""
    got = run(COUNT_TO_BLOCK, threads=64, blocks=7)
    block = np.repeat(np.arange(7), 64)
    np.testing.assert_array_equal(got["%r2"], block)
    np.testing.assert_array_equal(got["%r3"], 100 + block * block)
    np.testing.assert_array_equal(got["%r4"], 100 + block + block * block)
    assert got["executed"]["ret"] == 7 * 2, "each warp once"
    # 3 and 1 outside of the loop; the loop's head once more than its body.
    assert got["executed"]["setp"] == 2 * sum(i + 1 for i in range(7))
    assert got["executed"]["add"] == 2 * (7 + 2 * sum(range(7)))


def test_divided_warps_are_refused():
    lines = "mov.u32 %r1, %tid.x;\nsetp.lt.s32 %p1, %r1, 5;\n@%p1 bra $L__end;\nmov.b32 %r2, 1;\n$L__end:"
    with pytest.raises(NotCoveredError, match="a branch that some threads of a warp take and others do not"):
        run(lines)
    run(lines.replace("%r1, 5", "%r1, 50"))


def test_negated_branches():
    for guard, value, want in (("%p1", True, 1), ("%p1", False, 2), ("!%p1", True, 2), ("!%p1", False, 1)):
        lines = f"mov.b32 %r2, 1;\n@{guard} bra $L__end;\nmov.b32 %r2, 2;\n$L__end:"
        got = run(lines, {"%p1": np.full(32, value)})
        assert (got["%r2"] == want).all()


def test_traps():
    for lines in ("trap;", "@%p1 trap;"):
        with pytest.raises(EmulationError, match="trapped"):
            run(lines, {"%p1": np.arange(32) == 9})
    got = run("@%p1 trap;\nmov.b32 %r2, 1;", {"%p1": np.zeros(32, bool)})
    assert (got["%r2"] == 1).all()


def test_errors_say_where():
    lines = ".loc 1 12 3 // attend.py:12:3\nfrobnicate.sync %r1, %r2;"
    with pytest.raises(NotCoveredError) as caught:
        run(lines)
    assert str(caught.value) == "not covered: the instruction frobnicate at attend.py:12  [frobnicate.sync %r1, %r2]"
    assert caught.value.source == "attend.py:12"
    with pytest.raises(EmulationError, match=r"trapped .* at attend.py:12  \[trap\]"):
        run(".loc 1 12 3 // attend.py:12:3\ntrap;")


def test_grids():
    """Every block of a grid of three dimensions runs once, in several batches."""
    grid = (5, 4, 60)
    lines = """ld.param.b64 %rd1, [kernel_param_0];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %ctaid.z;
    mad.lo.s32 %r4, %r3, 4, %r2;
    mad.lo.s32 %r4, %r4, 5, %r1;
    mul.wide.s32 %rd2, %r4, 4;
    add.s64 %rd1, %rd1, %rd2;
    atom.global.add.u32 %r5, [%rd1], 1;"""
    import torch

    counts, outside = torch.zeros(1200, dtype=torch.int32), GlobalMemory()
    assert 2 * machine.LANES < 1200 * 32
    machine.Machine(parse(text_of(lines))).launch(grid, [outside.address_of(counts)], outside, 0)
    assert (counts == 32).all()


def test_endless_loops():
    limit, machine.MAX_STEPS = machine.MAX_STEPS, 1000
    try:
        with pytest.raises(EmulationError, match="no end after 1,000 branches"):
            run("$L__loop:\nbra.uni $L__loop;")
    finally:
        machine.MAX_STEPS = limit
