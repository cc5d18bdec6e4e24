"""Shuffles, reductions, votes and barriers."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, NotCoveredError, RaceError, warps
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
    with pytest.raises(EmulationError, match="some threads of a warp do not reach"):
        run("@%p1 bar.sync 0;", part, threads=64, module=module)
    with pytest.raises(EmulationError, match="warp 0 waits for ever for what others do not do: the GPU would hang"):
        run("@%p1 bar.sync 0;", whole, threads=64, module=module)
    run("@%p1 bar.sync 0;", {"%p1": np.repeat([True, False], 64)}, threads=64, blocks=2, module=module)
    with pytest.raises(NotCoveredError, match=r"bar\.red"):
        run("bar.red.popc.u32 %r9, 0, %p1;", module=module)


WRITE, READ = "st.shared.b32 [%r1], %r3;\n", "ld.shared.b32 %r9, [%r2];\n"


def three_warps(lines, module, **options):
    """%r1: a thread's own word, %r2: the same thread's of the first warp; %p0, %p1, %p2: a warp each."""
    thread = np.arange(96, dtype=np.uint32)
    given = {"%r1": 4 * thread, "%r2": 4 * (thread % 32), "%r3": thread}
    given |= {f"%p{warp}": thread // 32 == warp for warp in range(3)}
    return run(lines, given, threads=96, shared_bytes=384, module=module, **options)


def check_named_barriers(module):
    """Of two of three warps; with an arrival, which does not wait and learns nothing."""
    first_two, all_three = "@!%p2 bar.sync 2, 64;\n", "barrier.sync 1;\n"
    for lines in (
        f"{WRITE}{first_two}@%p1 {READ}",
        f"{WRITE}@%p0 bar.arrive 2, 64;\n@%p1 bar.sync 2, 64;\n@%p1 {READ}",
        f"{WRITE}{first_two}@!%p0 barrier.sync 3, 64;\n@%p2 {READ}",  # from the first to the second to the third
        f"{WRITE}{all_three}{READ}{first_two}{all_three}",
    ):
        for seed in (None, *range(4)):
            three_warps(lines, module, seed=seed)
    for lines in (
        f"{WRITE}{first_two}@%p2 {READ}",
        f"{WRITE}mov.u32 %r4, %warpid;\nbar.sync %r4, 32;\n{READ}",
        f"{WRITE}@%p0 bar.sync 2, 64;\n@%p1 bar.arrive 2, 64;\n@%p1 {READ}",
        f"{WRITE}@%p0 bar.arrive 2, 64;\n@%p0 {WRITE.replace('%r3', '7')}@%p1 bar.sync 2, 64;\n@%p1 {READ}",
        f"{WRITE}@!%p0 barrier.sync 3, 64;\n{first_two}@%p2 {READ}",
    ):
        with pytest.raises(RaceError, match="reads shared memory that another wrote"):
            three_warps(lines, module)
    for lines in ("@!%p2 bar.sync 2, 96;", "@%p0 bar.sync 2, 64;\n@%p1 bar.sync 3, 64;"):
        for seed in (None, 1):
            with pytest.raises(EmulationError, match="waits for ever"):
                three_warps(lines, module, seed=seed)


def check_elections(module):
    got = run("elect.sync %r9|%p1, -1;", threads=64, module=module)["%p1"]
    np.testing.assert_array_equal(got, np.arange(64) % 32 == 0)


CHECKS = checks_of(globals())
test_warps = each_of(CHECKS, warps)
