"""Faults in both memories, and races in shared memory: each with the program next to it that is in order."""

import math

import numpy as np
import pytest
import torch

from ptx_emulator import MemoryFault, RaceError, memory
from ptx_emulator.memory import SLOT_BITS
from tests.kernels.emulator.programs import checks_of, each_of, global_memory, run

THREAD = np.arange(64, dtype=np.uint32)
OWN, ACROSS = 4 * THREAD, 4 * (63 - THREAD)  # addresses: of each thread, and of one in the other warp


def two_warps(lines, module=memory, shared_bytes=256, threads=64, **registers):
    """%r1: own address, %r2: one of the other warp, %r3: the thread's number."""
    given = {"%r1": OWN, "%r2": ACROSS, "%r3": THREAD} | {f"%{name}": values for name, values in registers.items()}
    given = {name: values[:threads] for name, values in given.items()}
    return run(lines, given, threads=threads, shared_bytes=shared_bytes, module=module)


def is_race(lines, message, module, **options):
    with pytest.raises(RaceError, match=message):
        two_warps(lines, module, **options)


# -- shared memory ----------------------------------------------------------------------------------------------------


def check_write_then_read(module):
    write, read = "st.shared.b32 [%r1], %r3;", "ld.shared.b32 %r9, [%r2];"
    got = two_warps(f"{write}\nbar.sync 0;\n{read}", module)["%r9"]
    np.testing.assert_array_equal(got, THREAD[::-1])
    is_race(f"{write}\n{read}", "reads shared memory that another wrote", module)
    # One barrier does for what was written before it, not for what is written after.
    is_race(f"bar.sync 0;\n{write}\n{read}", "reads shared memory that another wrote", module)
    own = two_warps(f"{write}\nld.shared.b32 %r9, [%r1];", module)["%r9"]
    np.testing.assert_array_equal(own, THREAD)


def check_read_then_write(module):
    first = "st.shared.b32 [%r1], 7;\nbar.sync 0;\n"
    read, write = "ld.shared.b32 %r9, [%r2];", "st.shared.b32 [%r1], %r3;"
    assert (two_warps(f"{first}{read}\nbar.sync 0;\n{write}", module)["%r9"] == 7).all()
    is_race(f"{first}{read}\n{write}", "writes shared memory that another read", module)
    # By both warps at once, or one after the other: each has read what the other writes, whoever's stamp was last.
    at_once = "ld.shared.b32 %r9, [global_smem+0];\n"
    one_by_one = f"@%p2 {at_once}@!%p2 {at_once}"
    for reads in (at_once, one_by_one):
        for writer in (0, 63):
            lines = f"{first}{reads}@%p1 st.shared.b32 [global_smem+0], 5;"
            is_race(lines, "that another read", module, p1=writer == THREAD, p2=THREAD < 32)


def check_write_twice(module):
    is_race("st.shared.b32 [%r1], %r3;\nst.shared.b32 [%r2], %r3;", "writes shared memory that another wrote", module)
    two_warps("st.shared.b32 [%r1], %r3;\nbar.sync 0;\nst.shared.b32 [%r2], %r3;", module)
    # The same value is what replicated layouts write.
    two_warps("st.shared.b32 [%r1], 7;\nst.shared.b32 [%r2], 7;", module)
    with pytest.raises(RaceError, match="two threads write different values"):
        two_warps("st.shared.b32 [global_smem+0], %r3;", module)
    two_warps("st.shared.b32 [global_smem+0], 3;", module)


def check_narrow_neighbours(module):
    """Two bytes of one word belong to two warps: no race, if the program's narrowest access is a byte."""
    address = (THREAD // 32) + 2 * (THREAD % 32)
    two_warps("st.shared.b8 [%r5], %rs1;", module, r5=address.astype(np.uint32), rs1=THREAD.astype(np.uint16))


def check_blocks_are_apart(module):
    lines = "mov.u32 %r5, %ctaid.x;\nst.shared.b32 [%r1], %r5;\nbar.sync 0;\nld.shared.b32 %r9, [%r2];"
    given = {"%r1": np.tile(OWN, 3), "%r2": np.tile(ACROSS, 3)}
    got = run(lines, given, threads=64, blocks=3, shared_bytes=256, module=module)
    np.testing.assert_array_equal(got["%r9"], np.repeat([0, 1, 2], 64))


def check_shared_faults(module):
    for lines, message in (
        ("ld.shared.b32 %r9, [global_smem+256];", "read of 4 bytes at 256 of 256"),
        ("st.shared.v4.b32 [global_smem+256], {%r1, %r1, %r1, %r1};", "write of 16 bytes at 256 of 256"),
        ("ld.shared.b32 %r9, [%r1+4];", "read of 4 bytes at 256 of 256"),
        ("ld.shared.b32 %r9, [%r1+2];", "misaligned read of 4 bytes"),
        ("ld.shared.v4.b32 {%r5,%r6,%r7,%r8}, [global_smem+8];", "misaligned read of 16 bytes"),
    ):
        with pytest.raises(MemoryFault, match=message):
            two_warps(lines, module)
    two_warps("ld.shared.b32 %r9, [global_smem+252];", module)


# -- asynchronous copies ----------------------------------------------------------------------------------------------

COPY, COMMIT, WAIT = "cp.async.ca.shared.global [%r1], [%rd1], 0x4;", "cp.async.commit_group;", "cp.async.wait_group 0;"
WAIT_FOR_ALL_BUT_ONE = "cp.async.wait_group 1;"


def copying(lines, module=memory, **registers):
    source = torch.arange(100, 164, dtype=torch.int32)
    outside = global_memory(module)
    address = np.uint64(outside.address_of(source)) + OWN.astype(np.uint64)
    given = {"%r1": OWN, "%r2": ACROSS, "%r3": THREAD, "%rd1": address, "%r4": OWN + np.uint32(256)}
    given |= {f"%{name}": values for name, values in registers.items()}
    return run("\n".join(lines), given, threads=64, shared_bytes=512, outside=outside, module=module)


def check_copies(module):
    bar, read_other, read_own = "bar.sync 0;", "ld.shared.b32 %r9, [%r2];", "ld.shared.b32 %r9, [%r1];"
    got = copying([COPY, COMMIT, WAIT, bar, read_other], module)["%r9"]
    np.testing.assert_array_equal(got, 100 + THREAD[::-1])
    np.testing.assert_array_equal(copying([COPY, "cp.async.wait_all;", read_own], module)["%r9"], 100 + THREAD)
    for lines, message in (
        ([COPY, COMMIT, read_own], "read before the wait"),
        ([COPY, COMMIT, bar, read_own], "read before the wait"),
        ([COPY, WAIT, read_own], "read before the wait"),  # of no group, so not waited for
        ([COPY, COMMIT, WAIT_FOR_ALL_BUT_ONE, read_own], "read before the wait"),
        ([COPY, COMMIT, WAIT, read_other], "reads shared memory that another wrote"),
        ([COPY, COMMIT, bar, "st.shared.b32 [%r1], 1;"], "written while an asynchronous copy"),
        ([COPY, COMMIT, bar, COPY], "written while an asynchronous copy"),
        (["st.shared.b32 [%r2], 1;", COPY], "writes shared memory that another wrote"),
        (["ld.shared.b32 %r9, [%r2];", COPY], "writes shared memory that another read"),
    ):
        with pytest.raises(RaceError, match=message):
            copying(lines, module)


def check_copies_of_nothing(module):
    """A source size of 0 fills with zeros and reads nothing: the address may be anything."""
    stray = {"rd1": np.full(64, 3 << 50, np.uint64)}
    lines = ["cp.async.ca.shared.global [%r1], [%rd1], 0x4, %r8;", COMMIT, WAIT, "ld.shared.b32 %r9, [%r1];"]
    assert (copying(lines, module, r8=np.zeros(64, np.uint32), **stray)["%r9"] == 0).all()
    with pytest.raises(MemoryFault, match="in no tensor"):
        copying(lines, module, r8=np.full(64, 4, np.uint32), **stray)


# -- global memory ----------------------------------------------------------------------------------------------------


def reading(tensor, lines, offset=0, module=memory, mask=None, threads=32):
    outside = global_memory(module)
    base = outside.address_of(tensor, "k_ptr")
    lane = np.arange(threads, dtype=np.uint64)
    registers = {"%rd1": np.uint64(base) + 4 * lane + np.uint64(offset % 2**64), "%r1": lane.astype(np.uint32)}
    if mask is not None:
        registers["%p1"] = mask
    return run(lines, registers, threads=threads, outside=outside, module=module)


def check_global_bounds(module):
    x = torch.arange(32, dtype=torch.int32)
    np.testing.assert_array_equal(reading(x, "ld.global.b32 %r9, [%rd1];", module=module)["%r9"], np.arange(32))
    for offset in (4, -4):  # by one element
        with pytest.raises(MemoryFault, match=rf"byte {'128' if offset > 0 else '-4'} of k_ptr, which has 128"):
            reading(x, "ld.global.b32 %r9, [%rd1];", offset, module)
        with pytest.raises(MemoryFault, match="write of 4 bytes"):
            reading(x, "st.global.b32 [%rd1], %r1;", offset, module)
    with pytest.raises(MemoryFault, match="misaligned read of 4 bytes"):
        reading(x, "ld.global.b32 %r9, [%rd1];", 2, module)
    with pytest.raises(MemoryFault, match="misaligned read of 16 bytes"):
        reading(x, "ld.global.v4.b32 {%r5,%r6,%r7,%r8}, [%rd1];", 0, module)
    with pytest.raises(MemoryFault, match="0x0, which is in no tensor"):
        run("mov.b64 %rd1, 0;\nld.global.b32 %r9, [%rd1];", module=module)
    with pytest.raises(MemoryFault, match="in no tensor"):  # one tensor is never reached from another
        reading(x, "ld.global.b32 %r9, [%rd1];", 1 << SLOT_BITS, module)
    assert x.tolist() == list(range(32))


def check_masks(module):
    """What is masked away may point anywhere."""
    x, inside = torch.arange(16, dtype=torch.int32), np.arange(32) < 16
    got = reading(x, "mov.b32 %r9, 7;\n@%p1 ld.global.b32 %r9, [%rd1];", module=module, mask=inside)["%r9"]
    np.testing.assert_array_equal(got, np.where(inside, np.arange(32), 7))
    with pytest.raises(MemoryFault, match="byte 64 of k_ptr"):
        reading(x, "@%p1 ld.global.b32 %r9, [%rd1];", module=module, mask=np.arange(32) < 17)


def check_views_share_an_address_range(module):
    x, y = torch.zeros(100), torch.zeros(100)
    outside = global_memory(module)
    assert outside.address_of(x[10:]) == outside.address_of(x) + 40
    assert outside.address_of(y) >> SLOT_BITS != outside.address_of(x) >> SLOT_BITS
    assert (outside.address_of(x) - x.data_ptr()) % 256 == 0, "as aligned as it is"
    assert outside.describe(outside.address_of(y) + 8) == "byte 8 of tensor 1, which has 400"


def check_atomics(module):
    x = torch.zeros(2, dtype=torch.float32)
    outside = global_memory(module)
    lane = np.arange(32)
    address = np.uint64(outside.address_of(x)) + np.uint64(4) * (lane % 2).astype(np.uint64)
    lines = "atom.global.add.f32 %r9, [%rd1], %r1;"
    got = run(lines, {"%rd1": address, "%r1": np.float32(lane)}, outside=outside, module=module)["%r9"]
    assert x.tolist() == [sum(range(0, 32, 2)), sum(range(1, 32, 2))]
    np.testing.assert_array_equal(got.view(np.float32)[::2], np.cumsum([0, *range(0, 30, 2)]))
    y = torch.tensor([5], dtype=torch.int32)
    outside = global_memory(module)
    run("red.global.max.s32 [%rd1], %r1;", {"%rd1": np.uint64(outside.address_of(y)), "%r1": lane.astype(np.uint32)},
        outside=outside, module=module)  # fmt: skip
    assert y.item() == 31


NUMBERED = "mov.u32 %r5, %ctaid.x;\n"
IN_THE_FIRST, IN_THE_OTHER = "setp.eq.s32 %p1, %r5, 0;\n@%p1 ", "setp.ne.s32 %p2, %r5, 0;\n@%p2 "
ADD = "atom.global.acq_rel.gpu.add.u32 %r8, [%rd3], 1;\n"


def in_two_blocks(lines, module, written=None):
    """A word each at %rd1 for all, %rd2 of the block's own, %rd3 for atomics; %r5 is the block's number."""
    words, counter = torch.full((4,), 9, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    outside = getattr(module, "GlobalMemory", memory.GlobalMemory)(4, {words.data_ptr(): written})
    base, block = outside.address_of(words, "x_ptr"), np.repeat(np.arange(2, dtype=np.uint64), 32)
    given = {"%rd1": np.uint64(base), "%rd2": np.uint64(base + 4) + np.uint64(4) * block}
    given["%rd3"] = np.uint64(outside.address_of(counter))
    return run(NUMBERED + lines, given, blocks=2, outside=outside, module=module)


def check_blocks_have_no_order(module):
    write, read = "st.global.b32 [%rd1], %r5;\n", "ld.global.b32 %r9, [%rd1];\n"
    in_two_blocks("st.global.b32 [%rd2], %r5;\nld.global.b32 %r9, [%rd2];\nst.global.b32 [%rd2], 5;", module)
    for harmless in (
        "mov.b32 %r5, 7;\n" + write,
        read,
        write.replace("%r5", "9") + read,
        write.replace("%r5", "9") + "st.global.b32 [%rd1], 9;",
    ):
        in_two_blocks(harmless, module)
    for lines, message in (
        (IN_THE_FIRST + write + IN_THE_OTHER + write, "block 1 writes over what block 0 wrote"),
        (IN_THE_FIRST + write + IN_THE_OTHER + read, "block 1 reads what block 0 wrote"),
        (IN_THE_FIRST + read + IN_THE_OTHER + write, "block 1 writes over what block 0 read"),
        (read + IN_THE_OTHER + write, "block 1 writes over what several blocks read"),
    ):
        with pytest.raises(
            RaceError, match=rf"{message}, with nothing that orders them, at byte 0 of x_ptr, which has 16"
        ):
            in_two_blocks(lines, module)
    own = "mov.u32 %r6, %tid.x;\nst.global.b32 [%rd2], %r6;"
    for lines, who, byte in ((write, "0 and 1", 0), (own, "0 and 0", 4)):
        with pytest.raises(
            RaceError, match=f"threads of blocks {who} write different values at once, at byte {byte} of x_ptr"
        ):
            in_two_blocks(lines, module)


def check_atomics_order_blocks(module):
    """What is written before an atomic is known to a block that comes to it later; a relaxed one orders nothing."""
    first, other = IN_THE_FIRST + "st.global.b32 [%rd1], 5;\n", IN_THE_OTHER + "ld.global.b32 %r9, [%rd1];\n"
    assert (in_two_blocks(first + ADD + other, module)["%r9"][32:] == 5).all()
    for lines in (first + ADD.replace("acq_rel", "relaxed") + other, first + IN_THE_OTHER + ADD + other):
        with pytest.raises(RaceError, match="block 1 reads what block 0 wrote"):
            in_two_blocks(lines, module)


def check_memory_that_nobody_wrote(module):
    read = "ld.global.b32 %r9, [%rd2];\n"
    written = np.arange(16) < 11  # the second block's word lacks its last byte
    in_two_blocks(read, module, np.ones(16, bool))
    in_two_blocks(f"st.global.b32 [%rd2], %r5;\n{read}", module, written.copy())
    with pytest.raises(MemoryFault, match="read of 4 bytes that nobody wrote, at byte 8 of x_ptr"):
        in_two_blocks(read, module, written)


CHECKS = checks_of(globals())
test_memory = each_of(CHECKS, memory)


def test_uninitialised_shared_memory_is_nan():
    got = run("ld.shared.b32 %r9, [global_smem+0];", shared_bytes=16)["%r9"].view(np.float32)
    assert all(math.isnan(x) for x in got)
