"""Shuffles, reductions, votes and barriers."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, NotCoveredError, warps
from tests.kernels.emulator.programs import checks_of, each_of, run

LANE = np.arange(32, dtype=np.uint32)
VALUES = np.random.default_rng(0).integers(0, 2**32, 32, np.uint64).astype(np.uint32)


def reference(mode, a, b, c):
    """shfl.sync of one warp, as the pseudocode of the PTX ISA has it: (values, in range)."""
    values, inside = [], []
    for lane in range(32):
        shift, clamp, segment = int(b[lane]) & 31, int(c) & 31, int(c) >> 8 & 31
        last, first = lane & segment | clamp & ~segment & 31, lane & segment
        if mode == "up":
            j, ok = lane - shift, lane - shift >= last
        elif mode == "down":
            j, ok = lane + shift, lane + shift <= last
        elif mode == "bfly":
            j, ok = lane ^ shift, lane ^ shift <= last
        else:
            j = first | shift & ~segment & 31
            ok = j <= last
        values.append(a[j if ok else lane])
        inside.append(ok)
    return np.array(values), np.array(inside)


def check_shuffles(module):
    for mode, clamps in (("bfly", (31, 0x101F)), ("down", (31, 0x181F)), ("up", (0, 0x1800)), ("idx", (31, 0x1C1F, 5))):
        for clamp in clamps:
            for by in (LANE * 0 + 1, LANE * 0 + 16, LANE * 0 + 33, (LANE * 7 + 3) % 32):
                lines = f"shfl.sync.{mode}.b32 %r9|%p1, %r1, %r2, {clamp}, -1;"
                got = run(lines, {"%r1": VALUES, "%r2": by.astype(np.uint32)}, module=module)
                want, inside = reference(mode, VALUES, by, clamp)
                np.testing.assert_array_equal(got["%r9"], want, f"{mode} {clamp} {by}")
                np.testing.assert_array_equal(got["%p1"], inside)
    both = run(
        "shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;", {"%r1": np.arange(64, dtype=np.uint32)}, threads=64, module=module
    )
    np.testing.assert_array_equal(both["%r9"], np.arange(64) ^ 1)  # no value leaves its warp


def check_votes(module):
    p = np.arange(64) == 37
    lines = "vote.sync.any.pred %p2, %p1, -1;\nvote.sync.all.pred %p3, %p1, -1;\nvote.sync.ballot.b32 %r9, %p1, -1;"
    got = run(lines, {"%p1": p}, threads=64, module=module)
    np.testing.assert_array_equal(got["%p2"], np.arange(64) >= 32)
    assert not got["%p3"].any()
    np.testing.assert_array_equal(got["%r9"], np.repeat([0, 1 << 5], 32))


def check_parts_of_warps_and_blocks(module):
    part = {"%p1": np.arange(64) < 48}
    whole = {"%p1": np.arange(64) < 32}
    for lines in ("@%p1 shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;", "@%p1 redux.sync.add.u32 %r9, %r1, -1;"):
        with pytest.raises(NotCoveredError, match="by a part of a warp"):
            run(lines, part, threads=64, module=module)
        run(lines, whole, threads=64, module=module)
    for mask in (part, whole):
        with pytest.raises(EmulationError, match="some threads of a block do not reach"):
            run("@%p1 bar.sync 0;", mask, threads=64, module=module)
    run("@%p1 bar.sync 0;", {"%p1": np.repeat([True, False], 64)}, threads=64, blocks=2, module=module)
    for lines in ("bar.sync 1, 32;", "bar.sync %r1;"):
        with pytest.raises(NotCoveredError, match="a barrier for a part of the block"):
            run(lines, module=module)
    with pytest.raises(NotCoveredError, match=r"bar\.arrive"):
        run("bar.arrive 0, 64;", module=module)


CHECKS = checks_of(globals())
test_warps = each_of(CHECKS, warps)
