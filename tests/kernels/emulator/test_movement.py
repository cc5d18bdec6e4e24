"""Loads, stores and moves of every width; parameters and special registers."""

import numpy as np
import pytest
import torch

from ptx_emulator import NotCoveredError, memory
from tests.kernels.emulator.programs import run, tiled

LANE = np.arange(32, dtype=np.uint32)


def test_vectors():
    x = torch.arange(32 * 4, dtype=torch.int32)
    outside = memory.GlobalMemory()
    base = np.uint64(outside.address_of(x)) + np.uint64(16) * LANE.astype(np.uint64)
    lines = """ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd1];
    st.shared.v4.b32 [%r1], {%r8, %r7, %r6, %r5};
    ld.shared.v2.b64 {%rd5, %rd6}, [%r1];
    ld.shared.b16 %rs1, [%r1+2];"""
    got = run(lines, {"%rd1": base, "%r1": 16 * LANE}, shared_bytes=512, outside=outside)
    for i in range(4):
        np.testing.assert_array_equal(got[f"%r{5 + i}"], 4 * LANE + i)
    four = (4 * LANE).astype(np.uint64)
    np.testing.assert_array_equal(got["%rd5"], four + 3 | (four + 2) << np.uint64(32))
    np.testing.assert_array_equal(got["%rd6"], four + 1 | four << np.uint64(32))
    assert (got["%rs1"] == 0).all()


def test_narrow_loads():
    """A signed load fills a wider register by its sign, others by zeros."""
    x = torch.arange(-16, 16, dtype=torch.int8)
    outside = memory.GlobalMemory()
    base = np.uint64(outside.address_of(x)) + LANE.astype(np.uint64)
    lines = (
        "ld.global.s8 %r5, [%rd1];\nld.global.u8 %r6, [%rd1];\nld.global.b8 %rs7, [%rd1];\nst.global.b8 [%rd1], %r3;"
    )
    got = run(lines, {"%rd1": base, "%r3": LANE + 256}, outside=outside)
    np.testing.assert_array_equal(got["%r5"].view(np.int32), np.arange(-16, 16))
    np.testing.assert_array_equal(got["%r6"], np.arange(-16, 16) % 256)
    np.testing.assert_array_equal(got["%rs7"], np.arange(-16, 16) % 256)
    assert x.tolist() == list(range(32))


def test_moves():
    x = (LANE.astype(np.uint64) << np.uint64(33)) + np.uint64(5)
    lines = """mov.b64 {%r5, %r6}, %rd1;
    mov.b64 %rd5, {%r6, %r5};
    mov.b32 {%rs1, %rs2}, %r5;
    mov.b32 %r7, {%rs2, %rs1};
    mov.pred %p2, %p1;
    mov.u32 %r9, %tid.x;
    mov.b64 %rd6, -1;"""
    p = tiled([True, False, False], bool)
    got = run(lines, {"%rd1": x, "%p1": p})
    np.testing.assert_array_equal(got["%r5"], np.full(32, 5))
    np.testing.assert_array_equal(got["%r6"], 2 * LANE)
    np.testing.assert_array_equal(got["%rd5"], np.uint64(5 << 32) + np.uint64(2) * LANE)
    np.testing.assert_array_equal(got["%r7"], np.full(32, 5 << 16))
    np.testing.assert_array_equal(got["%p2"], p)
    np.testing.assert_array_equal(got["%r9"], LANE)
    assert (got["%rd6"] == 2**64 - 1).all()


def test_guards():
    """Lanes that are off keep what they had."""
    p = tiled([True, False], bool)
    got = run("mov.b32 %r1, 5;\n@%p1 mov.b32 %r1, 6;\n@!%p1 add.s32 %r1, %r1, 10;", {"%p1": p})
    np.testing.assert_array_equal(got["%r1"], np.where(p, 6, 15))


def test_parameters_and_special_registers():
    lines = """ld.param.b64 %rd1, [kernel_param_0];
    ld.param.s32 %rd2, [kernel_param_1];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %laneid;
    mov.u32 %r5, %warpid;
    mov.u32 %r6, %tid.y;
    mov.u32 %r7, WARP_SZ;"""
    parameters = {"kernel_param_0": 123 << 40, "kernel_param_1": -3}
    got = run(lines, parameters=parameters, threads=64, blocks=3)
    assert (got["%rd1"] == 123 << 40).all()
    assert (got["%rd2"].view(np.int64) == -3).all()
    lanes = np.arange(192)
    wanted = (lanes // 64, 3, 64, lanes % 32, lanes % 64 // 32, 0, 32)
    for i, want in enumerate(wanted, 1):
        np.testing.assert_array_equal(got[f"%r{i}"], np.broadcast_to(want, 192), str(i))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cp.async.bulk.tensor.2d.im2col.shared::cta.global [%r1], [%rd1, {%r2, %r3}], [%r4];", "tensor.2d.im2col"),
        (
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r4];",
            "cp.async.bulk.shared",
        ),
        ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];", "that arrives at an mbarrier"),
        ("mbarrier.arrive.shared::cluster.b64 _, [%r1], 1;", "mbarrier.arrive.shared::cluster"),
        ("ld.local.b32 %r1, [%rd1];", "of global and shared memory only"),
        ("st.local.b32 [%rd1], %r1;", "of global and shared memory only"),
        ("atom.global.cas.b32 %r1, [%rd2], %r3, %r4;", "atom.global.cas.b32"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 0x10, 8;", "a part of its bytes"),
        ("mov.u32 %r1, %clusterid.x;", "clusterid"),
        ("ld.global.L2::cache_hint.b32 %r1, [%rd1], %rd2;", "not covered"),
    ],
)
def test_forms_that_are_not_covered(line, message):
    with pytest.raises(NotCoveredError, match=message):
        run(line, {"%r1": LANE * 0, "%rd1": np.zeros(32, np.uint64)}, shared_bytes=64)
