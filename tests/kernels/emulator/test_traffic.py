"""The microscope's counts of sectors, banks, bytes in flight and products, of a few lines of PTX, made by hand."""

import pytest
import torch

from ptx_emulator.machine import Machine
from ptx_emulator.memory import GlobalMemory
from ptx_emulator.ptx import parse
from ptx_emulator.traffic import Traffic

REGISTERS = ".reg .b32 %r<20>;\n.reg .b64 %rd<9>;\n.reg .pred %p<9>;\n.reg .b16 %rs<9>;"
LANE = ["mov.u32 %r1, %tid.x;"]
POINTER = ["ld.param.b64 %rd1, [p];"]


def count(lines, num_threads=32, num_blocks=1, shared_bytes=16384):
    """The traffic of a few lines of PTX, given a pointer to 1 MiB as the parameter p."""
    body = "\n".join([REGISTERS, *POINTER, *LANE, *lines, "ret;"])
    program = parse(f".visible .entry k(\n.param .u64 p\n)\n.reqntid {num_threads}\n{{\n{body}\n}}")
    seen, memory = Traffic(), GlobalMemory()
    pool = torch.zeros(2**20 + 256, dtype=torch.uint8)
    pool = pool[-pool.data_ptr() % 256 :]  # begins where a sector does
    Machine(program, observer=seen).launch((num_blocks, 1, 1), [memory.address_of(pool)], memory, shared_bytes)
    return seen


def at(stride, offset=0):
    """Lines after which %rd2 is the address, and %r2 the place in shared memory, that is `stride` bytes per lane on."""
    return [
        f"mul.lo.s32 %r2, %r1, {stride};",
        f"add.s32 %r2, %r2, {offset};",
        "cvt.u64.u32 %rd2, %r2;",
        "add.s64 %rd2, %rd1, %rd2;",
    ]


GLOBAL_CASES = {  # lines: requests, sectors, least sectors, bytes asked
    "side by side": ([*at(4), "ld.global.b32 %r3, [%rd2];"], (1, 4, 4, 128)),
    "4 bytes too far": ([*at(4, 4), "ld.global.b32 %r3, [%rd2];"], (1, 5, 4, 128)),
    "16 bytes each": ([*at(16), "ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd2];"], (1, 16, 16, 512)),
    "all the same": ([*at(0), "ld.global.b32 %r3, [%rd2];"], (1, 1, 1, 4)),
    "the other half": (
        ["setp.ge.s32 %p1, %r1, 16;", "max.s32 %r1, %r1, 15;", *at(4, -64), "@%p1 ld.global.b32 %r3, [%rd2];"],
        (1, 2, 2, 64),
    ),
    "nobody": (["setp.lt.s32 %p1, %r1, 0;", *at(4), "@%p1 ld.global.b32 %r3, [%rd2];"], None),
    "a copy": ([*at(16), "cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.wait_all;"], (1, 16, 16, 512)),
}


@pytest.mark.parametrize("case", GLOBAL_CASES)
def test_global_accesses(case):
    lines, expected = GLOBAL_CASES[case]
    found = count(lines).global_accesses
    got = [(a.requests, a.sectors, a.least_sectors, a.bytes_asked) for a in found]
    assert got == ([] if expected is None else [expected])


def test_requests_per_warp():
    seen = count([*at(4), "ld.global.b32 %r3, [%rd2];"], num_threads=96, num_blocks=5)
    (access,) = seen.global_accesses
    assert (access.requests, access.sectors, access.bytes_asked) == (15, 60, 15 * 128)
    assert access.sectors_per_request == access.least_per_request == 4
    assert access.bytes_moved == 15 * 128
    assert access.efficiency == 1


def test_example():
    lines = ["setp.ge.s32 %p1, %r1, 31;", *at(40), "@%p1 ld.global.b32 %r3, [%rd2];"]
    (access,) = count(lines, num_threads=64, num_blocks=2).global_accesses
    assert access.example == ((0, 1240 % 32), *((1, 40 * lane - 1240 // 32 * 32) for lane in range(32, 64)))


def test_masked_copies():
    """Threads that want 0 bytes read nothing, and write zeros."""
    lines = [
        "setp.lt.s32 %p1, %r1, 4;",
        "selp.b32 %r4, 16, 0, %p1;",
        *at(16),
        "cp.async.cg.shared.global [%r2], [%rd2], 16, %r4;",
        "cp.async.wait_all;",
    ]
    seen = count(lines)
    assert [(a.sectors, a.bytes_asked) for a in seen.global_accesses] == [(2, 64)]
    assert [a.wavefronts for a in seen.shared_accesses] == [4]
    assert seen.bytes_in_flight == 64


SHARED_CASES = {  # lines: wavefronts, least wavefronts
    "side by side": ([*at(4), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "every other": ([*at(8), "ld.shared.b32 %r3, [%r2];"], (2, 1)),
    "one bank": ([*at(128), "ld.shared.b32 %r3, [%r2];"], (32, 1)),
    "broadcast": ([*at(0), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "two words of one bank": (["and.b32 %r1, %r1, 1;", *at(128), "ld.shared.b32 %r3, [%r2];"], (2, 1)),
    "8 bytes": ([*at(8), "ld.shared.v2.b32 {%r3, %r4}, [%r2];"], (2, 2)),
    "16 bytes in rows of 128": ([*at(128), "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"], (32, 4)),
    "16 bytes, half a warp": (
        ["setp.lt.s32 %p1, %r1, 16;", *at(16), "@%p1 ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"],
        (2, 2),
    ),
    "one matrix": ([*at(16), "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];"], (1, 1)),
    "matrices stored": ([*at(16), "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {%r1, %r1};"], (2, 2)),
}


@pytest.mark.parametrize("case", SHARED_CASES)
def test_shared_accesses(case):
    lines, expected = SHARED_CASES[case]
    (found,) = count(lines).shared_accesses
    assert (found.wavefronts, found.least_wavefronts) == expected
    assert found.requests == 1
    assert found.conflicts == expected[0] - expected[1]


def test_in_flight():
    """Four groups of 512 bytes, at most three of them under way at once; then half a warp's, never committed."""
    copy = ["cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.commit_group;"]
    lines = [
        *at(16), *copy, *at(16, 512), *copy, "cp.async.wait_group 1;", *at(16, 1024), *copy, *at(16, 1536), *copy,
        "cp.async.wait_group 0;", "bar.sync 0;", "setp.lt.s32 %p1, %r1, 16;", *at(16, 2048),
        "@%p1 cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.wait_all;",
    ]  # fmt: skip
    assert count(lines, num_blocks=3).bytes_in_flight == 1536


def test_flops():
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r3, %r4, %r5, %r6}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, "
    seen = count([mma + "{%r3, %r4, %r5, %r6};"], num_threads=64, num_blocks=3)
    assert seen.matrix_flops == 6 * 2 * 16 * 8 * 16
