"""mbarriers, and boxes of tensors that bulk copies bring and fetch: each order with the one next to it that lacks a wait."""

import numpy as np
import pytest
import torch

from ptx_emulator import EmulationError, MemoryFault, NotCoveredError, RaceError, mbarriers, memory
from ptx_emulator.bulk import TENSOR_MAP
from tests.kernels.emulator.programs import checks_of, each_of, run

SEEDS = (None, 0, 1, 2)
TILE_BYTES, AT = 2048, 4096  # a box of 16 x 64 elements of 16 bits at 0, mbarriers from AT on
INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r5], {};\nbar.sync 0;\n"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r5], {};\n"
ONE, EXPECT = ARRIVE.format(1), "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {};\n"
PUT, GET = "st.shared.b32 [%r1], %r3;\n", "ld.shared.b32 %r9, [%r2];\n"
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r6], [%rd1, {{{}}}], [%r5];\n"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r7, %r8}], [%r6];\n"


def wait(parity, of=None):
    """As Triton has it, in a scope of its own; of the warps of a predicate, or of all."""
    skip = f"@!{of} bra.uni skipWait;" if of else ""
    test = f"mbarrier.try_wait.parity.shared::cta.b64 complete, [%r5], {parity};"
    return f"{{\n.reg .pred complete;\n{skip}\nwaitLoop:\n{test}\n@!complete bra.uni waitLoop;\nskipWait:\n}}\n"


def two_warps(lines, module, *, seed=None, outside=None, **registers):
    """%r1: a thread's own word, %r2: the same thread's of the first warp, %r3: its number; %p1: the first thread, %p2:
    that of each warp, %p3: the first warp, %p4: the other; %r5: an mbarrier, %r6: a box."""
    thread = np.arange(64, dtype=np.uint32)
    given = {"%r1": 4 * thread, "%r2": 4 * (thread % 32), "%r3": thread, "%r5": thread * 0 + AT, "%r6": thread * 0}
    given |= {"%p1": thread == 0, "%p2": thread % 32 == 0, "%p3": thread < 32, "%p4": thread >= 32}
    given |= {f"%{name}": np.resize(values, 64) for name, values in registers.items()}
    return run(lines, given, threads=64, shared_bytes=8192, seed=seed, outside=outside, module=module)


def in_any_order(lines, module, **options):
    return [two_warps(lines, module, seed=seed, **options) for seed in SEEDS][-1]


def check_phases(module):
    """What the first warp wrote before it arrived is known to the other after its wait, in each phase again."""
    there, back = INIT.format(32), f"@%p3 {PUT}@%p3 {ONE}{wait(0)}@%p4 {GET}"
    got = in_any_order(there + back, module)["%r9"]
    np.testing.assert_array_equal(got[32:], np.arange(32))
    # The other answers by an mbarrier of its own, with parities as Triton counts them: 0 and -1.
    second = INIT.format(32).replace("%r5", "%r10") + f"@%p4 {ONE}{wait(0)}".replace("%r5", "%r10")
    again = f"@%p3 st.shared.b32 [%r1], 7;\n@%p3 {ONE}{wait(-1)}@%p4 {GET}"
    where = {"r10": np.full(64, AT + 8, np.uint32)}
    assert (in_any_order(there + back + second + again, module, **where)["%r9"][32:] == 7).all()
    for lines, message in (
        (f"@%p3 {PUT}@%p3 {ONE}@%p4 {GET}", "reads shared memory that another wrote"),
        (f"@%p3 {ONE}@%p3 {PUT}{wait(0)}@%p4 {GET}", "reads shared memory that another wrote"),
        (f"@%p3 {ONE}@%p3 {PUT}@%p1 {ONE}{wait(0)}@%p4 {GET}", "reads shared memory that another wrote"),
        (back + f"@%p3 {PUT.replace('%r3', '7')}", "writes shared memory that another read"),
        (back + f"@%p3 {PUT.replace('%r3', '7')}@%p3 {ONE}{wait(0)}@%p4 {GET}", "that another"),
    ):
        with pytest.raises(RaceError, match=message):
            two_warps(there + lines, module)


def check_arrivals_are_counted(module):
    both, half = INIT.format(64), ARRIVE.format(32)
    for lines in (f"{ONE}{wait(0)}", f"@%p2 {half}{wait(0)}", wait(1), f"@%p2 {half}{wait(0)}@%p2 {half}{wait(1)}"):
        in_any_order(both + lines, module)
    for lines, message in (
        (f"{both}@%p1 {half}{wait(0)}", "waits for ever"),
        (f"{both}@%p2 {half}@%p1 {ONE}{wait(-1)}", "waits for ever"),
        (f"{both}@%p2 {half}{wait(0)}@%p1 {ONE}{wait(1)}", "waits for ever"),
        (f"{both}@%p2 {ARRIVE.format(48)}", "more arrivals in one phase than the 64 it expects"),
        (ONE, "no mbarrier is initialised at 4,096"),
        (f"{both.replace('bar.sync 0;', '')}@%p4 {ONE}", "reads shared memory that another wrote"),
    ):
        for seed in SEEDS:
            with pytest.raises(EmulationError, match=message):
                two_warps(lines, module, seed=seed)


def tensor(shape=(20, 72), box=(16, 64), swizzle=3, stride=None, **changed):
    """(elements, their memory with a map of them, registers): `box` elements of 16 bits, the innermost last."""
    x = torch.arange(shape[0] * shape[1], dtype=torch.int16).reshape(shape)
    outside, fields = memory.GlobalMemory(), np.zeros(1, TENSOR_MAP)
    values = {"global_address": outside.address_of(x, "x_ptr"), "rank": 1, "elemtype": 1, "swizzle_mode": swizzle}
    for name, value in (values | changed).items():
        fields[name] = value
    fields["box_dim"][0, :2], fields["global_dim"][0, :2], fields["element_stride"] = box[::-1], shape[::-1], 1
    fields["global_stride"][0, 0] = stride or 2 * shape[1]
    room = torch.zeros(256, dtype=torch.uint8)
    place = room[-room.data_ptr() % 128 :][:128]
    place[: TENSOR_MAP.itemsize] = torch.from_numpy(fields.view(np.uint8))
    return x, {"outside": outside, "rd1": np.uint64(outside.address_of(place, "map"))}


def read_box(swizzle, module, options, row, column, bytes_expected=TILE_BYTES):
    """uint16 [16, 64], put in order, of a box that was waited for."""
    load = LOAD.format("%r7, %r8")
    lines = INIT.format(1) + f"@%p1 {EXPECT.format(bytes_expected)}@%p1 {load}{wait(0)}"
    lines += "".join(f"ld.shared.v4.b32 {{%r2{i}, %r3{i}, %r4{i}, %r5{i}}}, [%r1{i}];\n" for i in (0, 1))
    chunk = np.arange(128)
    swizzled = 16 * (chunk ^ (chunk // 8 & {3: 7, 2: 3, 1: 1, 0: 0}[swizzle]))
    options = options | {"r7": np.int32(column), "r8": np.int32(row)}
    options |= {"r10": swizzled[:64].astype(np.uint32), "r11": swizzled[64:].astype(np.uint32)}
    got = in_any_order(lines, module, **options)
    words = [np.stack([got[f"%r{k}{i}"] for k in (2, 3, 4, 5)], 1) for i in (0, 1)]
    return np.concatenate(words).view(np.uint16)


def check_boxes(module):
    """Each swizzle; at a corner inside, and with rows and columns outside of the tensor, which are zero."""
    for swizzle, box in ((3, (16, 64)), (2, (32, 32)), (1, (64, 16)), (0, (16, 64))):
        for row, column in ((0, 0), (3, 5), (10, 40), (-5, -7), (100, 0)):
            x, options = tensor(box=box, swizzle=swizzle)
            want = np.zeros(box, np.uint16)
            for i, j in np.ndindex(*box):
                if 0 <= row + i < 20 and 0 <= column + j < 72:
                    want[i, j] = x[row + i, column + j]
            got = read_box(swizzle, module, options, row, column)
            np.testing.assert_array_equal(got.reshape(box), want, f"{swizzle} {row} {column}")


def check_loads_are_waited_for(module):
    _, options = tensor()
    options |= {"r7": np.int32(0), "r8": np.int32(0)}
    load, fence = f"@%p1 {EXPECT.format(TILE_BYTES)}@%p1 {LOAD.format('%r7, %r8')}", "fence.proxy.async.shared::cta;\n"
    in_any_order(f"{INIT.format(1)}{load}{wait(0)}{GET}", module, **options)
    in_any_order(f"{PUT}{fence}{INIT.format(1)}{load}{wait(0)}{GET}", module, **options)
    for lines, message in (
        (f"{load}{GET}", "read before the wait for the asynchronous copy|no wait for it"),
        (f"{load}{wait(0, '%p3')}@%p4 {GET}", "no wait for it|before the wait"),
        (f"{load}{PUT}", "written while an asynchronous copy|that another wrote"),
        (f"{load}", "the kernel ends while a bulk copy"),
        (f"{load}bar.sync 0;\n@%p1 {LOAD.format('%r7, %r8')}", "written while an asynchronous copy"),
    ):
        with pytest.raises(RaceError, match=message):
            two_warps(INIT.format(1) + lines, module, **options)
    for before, message in ((PUT, "with no fence.proxy.async"), (f"{PUT}{fence}", "that another wrote")):
        with pytest.raises(RaceError, match=message):  # the other warp's words, with no barrier after them
            two_warps(f"{INIT.format(1)}{before}{load}{wait(0)}", module, **options)
    for num_bytes in (TILE_BYTES - 16, TILE_BYTES + 16):
        with pytest.raises(EmulationError, match="waits for ever"):
            two_warps(f"{INIT.format(1)}{load.replace('2048', str(num_bytes))}{wait(0)}", module, **options)


def check_stores(module):
    """What lies inside of the tensor is stored, and the box may not be changed before the wait."""
    fence, commit = "fence.proxy.async.shared::cta;\n", "cp.async.bulk.commit_group;\n"
    done = f"{commit}cp.async.bulk.wait_group.read 0;\n"
    zeros = "".join(f"st.shared.b32 [%r1+{256 * i}], 0;\n" for i in range(8))
    corner = {"r7": np.int32(16), "r8": np.int32(8)}
    x, options = tensor()
    want = x.clone()
    want[8:20, 16:72] = 0
    two_warps(f"{zeros}{fence}bar.sync 0;\n@%p1 {STORE}{done}", module, **options, **corner)
    assert torch.equal(x, want)
    load = f"@%p1 {EXPECT.format(TILE_BYTES)}@%p1 {LOAD.format('%r7, %r8')}{wait(0)}"
    two_warps(f"{INIT.format(1)}{load}@%p1 {STORE}{done}", module, **options, **corner)  # hardware needs no fence
    assert torch.equal(x, want)
    for lines, message in (
        (f"{zeros}bar.sync 0;\n@%p1 {STORE}{done}", "with no fence.proxy.async"),
        (f"{zeros}{fence}@%p1 {STORE}{done}", "reads what single warps wrote"),
        (f"{zeros}{fence}bar.sync 0;\n@%p1 {STORE}{commit}", "the kernel ends while a bulk copy"),
        (f"{zeros}{fence}bar.sync 0;\n@%p1 {STORE}{commit}bar.sync 0;\n{PUT}{done}", "hardware that reads it"),
        (f"{zeros}{fence}bar.sync 0;\n@%p1 {STORE}{done}{PUT}", "that another read"),
    ):
        with pytest.raises(RaceError, match=message):
            two_warps(lines, module, **options, **corner)


CHECKS = checks_of(globals())
test_mbarriers = each_of(CHECKS, mbarriers)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"elemtype": 99}, EmulationError, "no tensor map"),
        ({"rank": 2}, EmulationError, "2 coordinates for a tensor map of 3 dimensions"),
        ({"stride": 100}, MemoryFault, "not multiples of 16 bytes"),
        ({"fill_mode": 1}, NotCoveredError, "fills with NaN"),
        ({"swizzle": 2}, NotCoveredError, "rows of 128 bytes, swizzled by 64"),
        ({"global_address": 0}, MemoryFault, "in no tensor"),
    ],
    ids=str,
)
def test_maps_that_are_refused(changed, error, message):
    _, options = tensor(**changed)
    with pytest.raises(error, match=message):
        read_box(3, mbarriers, options, 0, 0)
