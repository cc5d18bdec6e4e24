"""The microscope against counts made by hand: PTX of a few lines, and small kernels compiled by Triton."""

import _thread
import linecache
import math
import threading
import time

import pytest
import torch

from ptx_emulator import CompilingProcess, MemoryFault
from ptx_emulator import traffic as traffic_module
from ptx_emulator.inspection import KernelReport, inspect_call, inspect_in, inspect_kernel
from ptx_emulator.kernel_source import KernelSourceError, kernel_source
from ptx_emulator.machine import Machine
from ptx_emulator.memory import GlobalMemory
from ptx_emulator.ptx import parse
from tests.mutation import Mutant
from twophase_kernels._triton import tl, triton

REGISTERS = ".reg .b32 %r<20>;\n.reg .b64 %rd<9>;\n.reg .pred %p<9>;\n.reg .b16 %rs<9>;"
LANE = ["mov.u32 %r1, %tid.x;"]
POINTER = ["ld.param.b64 %rd1, [p];"]


def count(lines, module=traffic_module, num_threads=32, num_blocks=1, shared_bytes=16384):
    """The traffic of a few lines of PTX, given a pointer to 1 MiB as the parameter p."""
    body = "\n".join([REGISTERS, *POINTER, *LANE, *lines, "ret;"])
    program = parse(f".visible .entry k(\n.param .u64 p\n)\n.reqntid {num_threads}\n{{\n{body}\n}}")
    seen, memory = module.Traffic(), GlobalMemory()
    pool = torch.zeros(2**20 + 256, dtype=torch.uint8)
    pool = pool[-pool.data_ptr() % 256 :]  # begins where a sector does
    Machine(program, seen.builders).launch((num_blocks, 1, 1), [memory.address_of(pool)], memory, shared_bytes)
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
    "32 apart": ([*at(128), "ld.global.b32 %r3, [%rd2];"], (1, 32, 4, 128)),
    "every other": ([*at(8), "ld.global.b32 %r3, [%rd2];"], (1, 8, 4, 128)),
    "4 bytes too far": ([*at(4, 4), "ld.global.b32 %r3, [%rd2];"], (1, 5, 4, 128)),
    "16 bytes each": ([*at(16), "ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd2];"], (1, 16, 16, 512)),
    "8 bytes each, stored": ([*at(8), "st.global.v2.b32 [%rd2], {%r1, %r1};"], (1, 8, 8, 256)),
    "all the same": ([*at(0), "ld.global.b32 %r3, [%rd2];"], (1, 1, 1, 4)),
    "2 bytes each": ([*at(2), "ld.global.b16 %rs3, [%rd2];"], (1, 2, 2, 64)),
    "half a warp": (["setp.lt.s32 %p1, %r1, 16;", *at(4), "@%p1 ld.global.b32 %r3, [%rd2];"], (1, 2, 2, 64)),
    "the other half": (
        ["setp.ge.s32 %p1, %r1, 16;", "max.s32 %r1, %r1, 15;", *at(4, -64), "@%p1 ld.global.b32 %r3, [%rd2];"],
        (1, 2, 2, 64),
    ),
    "nobody": (["setp.lt.s32 %p1, %r1, 0;", *at(4), "@%p1 ld.global.b32 %r3, [%rd2];"], None),
    "an offset": ([*at(4), "ld.global.b32 %r3, [%rd2+4];"], (1, 5, 4, 128)),
    "an atomic": ([*at(0), "atom.global.add.s32 %r3, [%rd2], %r1;"], (1, 1, 1, 4)),
    "a copy": ([*at(16), "cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.wait_all;"], (1, 16, 16, 512)),
}


def check_global(module, case):
    lines, expected = GLOBAL_CASES[case]
    found = count(lines, module).global_accesses
    got = [(a.requests, a.sectors, a.least_sectors, a.bytes_asked) for a in found]
    assert got == ([] if expected is None else [expected])


@pytest.mark.parametrize("case", GLOBAL_CASES)
def test_sectors(case):
    check_global(traffic_module, case)


def check_requests_per_warp(module):
    seen = count([*at(4), "ld.global.b32 %r3, [%rd2];"], module, num_threads=96, num_blocks=5)
    (access,) = seen.global_accesses
    assert (access.requests, access.sectors, access.bytes_asked) == (15, 60, 15 * 128)
    assert access.sectors_per_request == access.least_per_request == 4
    assert access.bytes_moved == 15 * 128
    assert access.efficiency == 1


def test_a_request_is_a_warps():
    check_requests_per_warp(traffic_module)


def check_example(module):
    lines = ["setp.ge.s32 %p1, %r1, 31;", *at(40), "@%p1 ld.global.b32 %r3, [%rd2];"]
    (access,) = count(lines, module, num_threads=64, num_blocks=2).global_accesses
    assert access.example == ((0, 1240 % 32), *((1, 40 * lane - 1240 // 32 * 32) for lane in range(32, 64)))


def test_the_example_is_the_first_blocks():
    check_example(traffic_module)


def check_masked_copies(module):
    """Threads that want 0 bytes read nothing, and write zeros."""
    lines = [
        "setp.lt.s32 %p1, %r1, 4;",
        "selp.b32 %r4, 16, 0, %p1;",
        *at(16),
        "cp.async.cg.shared.global [%r2], [%rd2], 16, %r4;",
        "cp.async.wait_all;",
    ]
    seen = count(lines, module)
    assert [(a.sectors, a.bytes_asked) for a in seen.global_accesses] == [(2, 64)]
    assert [a.wavefronts for a in seen.shared_accesses] == [4]
    assert seen.bytes_in_flight == 64


def test_masked_copies():
    check_masked_copies(traffic_module)


SHARED_CASES = {  # lines: wavefronts, least wavefronts
    "side by side": ([*at(4), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "stored": ([*at(4), "st.shared.b32 [%r2], %r1;"], (1, 1)),
    "every other": ([*at(8), "ld.shared.b32 %r3, [%r2];"], (2, 1)),
    "every third": ([*at(12), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "one bank": ([*at(128), "ld.shared.b32 %r3, [%r2];"], (32, 1)),
    "one bank, padded": ([*at(132), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "broadcast": ([*at(0), "ld.shared.b32 %r3, [%r2];"], (1, 1)),
    "two words of one bank": (["and.b32 %r1, %r1, 1;", *at(128), "ld.shared.b32 %r3, [%r2];"], (2, 1)),
    "halves of words": ([*at(2), "ld.shared.b16 %rs3, [%r2];"], (1, 1)),
    "8 bytes": ([*at(8), "ld.shared.v2.b32 {%r3, %r4}, [%r2];"], (2, 2)),
    "8 bytes, every other": ([*at(16), "ld.shared.v2.b32 {%r3, %r4}, [%r2];"], (4, 2)),
    "16 bytes": ([*at(16), "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"], (4, 4)),
    "16 bytes in rows of 128": ([*at(128), "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"], (32, 4)),
    "16 bytes, half a warp": (
        ["setp.lt.s32 %p1, %r1, 16;", *at(16), "@%p1 ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"],
        (2, 2),
    ),
    "matrices": ([*at(16), "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];"], (4, 4)),
    "matrices of rows of 128": (
        [*at(128), "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];"],
        (32, 4),
    ),
    "one matrix": ([*at(16), "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];"], (1, 1)),
    "matrices stored": ([*at(16), "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {%r1, %r1};"], (2, 2)),
}


def check_shared(module, case):
    lines, expected = SHARED_CASES[case]
    (found,) = count(lines, module).shared_accesses
    assert (found.wavefronts, found.least_wavefronts) == expected
    assert found.requests == 1
    assert found.conflicts == expected[0] - expected[1]


@pytest.mark.parametrize("case", SHARED_CASES)
def test_bank_conflicts(case):
    check_shared(traffic_module, case)


def check_blocks_apart(module):
    """Blocks have shared memories of their own: the same places in two of them are no conflict, nor one word."""
    (found,) = count([*at(8), "ld.shared.b32 %r3, [%r2];"], module, num_threads=64, num_blocks=3).shared_accesses
    assert (found.requests, found.wavefronts, found.least_wavefronts) == (6, 12, 6)


def test_blocks_do_not_share_banks():
    check_blocks_apart(traffic_module)


def check_in_flight(module):
    """Four groups of 512 bytes, at most three of them under way at once; then half a warp's, never committed."""
    copy = ["cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.commit_group;"]
    lines = [
        *at(16), *copy, *at(16, 512), *copy, "cp.async.wait_group 1;", *at(16, 1024), *copy, *at(16, 1536), *copy,
        "cp.async.wait_group 0;", "bar.sync 0;", "setp.lt.s32 %p1, %r1, 16;", *at(16, 2048),
        "@%p1 cp.async.cg.shared.global [%r2], [%rd2], 16;", "cp.async.wait_all;",
    ]  # fmt: skip
    assert count(lines, module, num_blocks=3).bytes_in_flight == 1536


def test_bytes_in_flight():
    check_in_flight(traffic_module)


def check_flops(module):
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r3, %r4, %r5, %r6}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, "
    seen = count([mma + "{%r3, %r4, %r5, %r6};"], module, num_threads=64, num_blocks=3)
    assert seen.matrix_flops == 6 * 2 * 16 * 8 * 16


def test_matrix_flops():
    check_flops(traffic_module)


# -- compiled kernels


@triton.jit
def strided_copy(x_ptr, y_ptr, stride, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs * stride)
    tl.store(y_ptr + offs, x)


@triton.jit
def products(x_ptr, y_ptr, out_ptr, num_tiles, N: tl.constexpr):
    offs = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.zeros([N, N], tl.float32)
    for i in range(num_tiles):
        x, y = tl.load(x_ptr + i * N * N + offs), tl.load(y_ptr + i * N * N + offs)
        total = tl.dot(x, y, total)
    tl.store(out_ptr + offs, total)


def loads(report: KernelReport):
    return [access for access in report.global_accesses if not access.is_store]


def stride_one():
    x, y = torch.arange(256.0), torch.zeros(32)
    return inspect_kernel(strided_copy, (1,), (x, y, 1), N=32, num_warps=1), y


@pytest.fixture
def process(compiling):
    return compiling


def test_inspects_in_the_process_that_compiles(process):
    report, y = process.call(stride_one)
    assert torch.equal(y, torch.arange(32.0))
    (load,) = loads(report)
    assert (load.sectors_per_request, load.instruction) == (4, "ld.global.b32")
    assert load.source.startswith("test_inspection.py:")
    assert report.bytes_moved == report.bytes_asked == 256
    assert report.loop == {}
    assert report.executed["ld"] == 3  # two pointers (the stride of 1 is compiled in), and the load


def test_a_strided_kernel_from_here(process, capsys):
    x, y = torch.arange(256.0), torch.zeros(32)
    report = inspect_in(process, strided_copy, (1,), (x, y, 8), N=32, num_warps=1)
    assert torch.equal(y, x[::8])
    (load,) = loads(report)
    assert (load.sectors_per_request, load.least_per_request, load.efficiency) == (32, 4, 1 / 8)
    text = report.show()
    assert capsys.readouterr().out == text + "\n"
    assert "32.0" in text
    assert "strided_copy for sm_90" in text


def copy_times(num_times: int, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for _ in range(num_times):
        strided_copy[(len(x) // 32,)](x, y, 1, N=32, num_warps=1)
    return y


def test_the_kernel_that_a_wrapper_launches(process):
    report = process.call(inspect_call, copy_times, 1, torch.arange(96.0), target="sm_80")
    assert (report.kernel, report.target, report.grid) == ("strided_copy", "sm_80", (3, 1, 1))
    assert report.bytes_asked == 3 * 2 * 32 * 4


@pytest.mark.parametrize("num_times", [0, 2])
def test_a_wrapper_that_launches_another_number_of_kernels(process, num_times):
    with pytest.raises(ValueError, match=f"copy_times launches {num_times} kernels; one at a time"):
        process.call(inspect_call, copy_times, num_times, torch.zeros(32))


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_loop_of_products(process, target):
    x, y = (torch.randn(3 * 64, 64).to(torch.float16) for _ in range(2))
    out = torch.zeros(64, 64)
    report = inspect_in(process, products, (1,), (x, y, out, 3), target, N=64, num_warps=4, num_stages=3)
    expected = (x.view(3, 64, 64).double() @ y.view(3, 64, 64).double()).sum(0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-2)
    assert report.matrix_flops == 3 * 2 * 64**3
    assert report.bytes_in_flight == 2 * 2 * 64 * 64 * 2  # of three buffers of X and Y one is in use
    assert sum(a.bytes_asked for a in loads(report)) == 2 * 3 * 64 * 64 * 2
    assert report.registers > 0
    assert report.stack_bytes == 0
    assert report.loop["HGMMA" if target == "sm_90" else "HMMA"] > 0
    assert report.loop_instructions == sum(report.loop.values())
    roofline = report.roofline(bytes_per_s=1e12, flops_per_s=1e12)
    assert roofline.memory_s == report.bytes_moved / 1e12
    assert roofline.arithmetic_s == report.matrix_flops / 1e12
    assert (roofline.bound_by, roofline.seconds) == ("arithmetic", roofline.arithmetic_s)
    assert report.roofline(1e9, 1e12).bound_by == "memory"
    with pytest.raises(ValueError, match="bytes_per_s should be positive, got 0"):
        report.roofline(0, 1)
    assert report.occupancy("H100").blocks > 0
    with pytest.raises(ValueError, match=r"the cards known here are A100.*got 'V100'"):
        report.occupancy("V100")


# -- the process


def interrupted(seconds):
    """An interrupt comes while the child computes; and then a call of another function."""
    time.sleep(seconds)
    return "too late"


@pytest.mark.full
def test_an_interrupted_call_is_not_answered_later():
    with CompilingProcess() as process:
        assert process.call(len, "1234") == 4
        timer = threading.Timer(0.5, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            process.call(interrupted, 30)
        timer.join()
        assert process.call(len, "12345") == 5


def unpicklable():
    error = ValueError("its words")
    error.cannot_travel = lambda: None
    raise error


def test_an_error_that_cannot_travel_sends_its_words(process):
    with pytest.raises(RuntimeError, match="ValueError: its words"):
        process.call(unpicklable)
    assert process.call(len, "1234") == 4


# -- kernels that travel as text

CELL = """# line 1 of a cell
OFFSET = 2
SCALE = tl.constexpr(3.0)

@triton.jit
def helper(x):
    return x * SCALE + OFFSET

@triton.jit
def own(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, helper(x))
"""


def cell(text, **names):
    """What the cell defines, as in a notebook: its text is in linecache only."""
    file = "<ipython-input-7>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"triton": triton, "tl": tl, "torch": torch, "__name__": "__main__", **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace


def test_a_kernel_of_a_cell(process):
    x, y = torch.arange(32.0), torch.zeros(32)
    kernel = cell(CELL.replace("OFFSET = 2", "OFFSET = tl.constexpr(2)"))["own"]
    report = inspect_in(process, kernel, (1,), (x, y), N=32, num_warps=1)
    assert torch.equal(y, 3 * x + 2)
    assert [a.source for a in report.global_accesses] == ["cell.py:12", "cell.py:13"]


def test_a_fault_names_the_line_of_the_cell(process):
    kernel = cell(CELL.replace("x_ptr + offs)", "x_ptr + offs + 1)").replace("= 2", "= tl.constexpr(2)"))["own"]
    with pytest.raises(MemoryFault, match=r"of x_ptr, which has 128.* at cell.py:12"):
        inspect_in(process, kernel, (1,), (torch.zeros(32), torch.zeros(32)), N=32, num_warps=1)


def test_a_kernel_of_a_module_travels_by_name():
    source = kernel_source(strided_copy)
    assert (source.module, source.text) == (__name__, "")


def test_what_is_no_kernel_is_refused():
    with pytest.raises(ValueError, match=r"decorated with @triton\.jit, got <function cell"):
        kernel_source(cell)


def test_a_name_that_cannot_travel_is_refused():
    text = CELL.replace("SCALE = tl.constexpr(3.0)", "SCALE = torch.ones(1)")
    with pytest.raises(KernelSourceError, match="helper uses SCALE, a Tensor; kernels use numbers only"):
        kernel_source(cell(text)["own"])


def test_an_attribute_is_no_global_name():
    """Whatever a cell calls `arange`: the kernel means that of `tl.arange`."""
    kernel = cell(
        CELL.replace("offs, helper(x)", "offs, helper(x).to(tl.float32)"), arange=math, to=torch.ones(1), load=[]
    )["own"]
    assert [name for name, _ in kernel_source(kernel).names] == ["helper"]


def test_unknown_source_is_refused():
    kernel = cell(CELL)["own"]
    linecache.cache.pop("<ipython-input-7>")
    with pytest.raises(KernelSourceError, match="the source of own is not known"):
        kernel_source(kernel)


# -- planted bugs

TRAFFIC = "ptx_emulator.traffic"
MUTANTS = [
    Mutant(name, TRAFFIC, old, new)
    for name, old, new in (
        ("larger sectors", "SECTOR = 32", "SECTOR = 64"),
        ("fewer banks", "NUM_BANKS, BANK_BYTES = 32, 4", "NUM_BANKS, BANK_BYTES = 16, 4"),
        ("wide banks", "NUM_BANKS, BANK_BYTES = 32, 4", "NUM_BANKS, BANK_BYTES = 32, 8"),
        ("requests of a block", "_distinct(warps, places)", "_distinct(warps // 2, places)"),
        ("sectors of items", "_distinct(warps, places // SECTOR)", "_distinct(warps, places)"),
        ("sectors across warps", "_distinct(warps, places // SECTOR)", "_distinct(0 * warps, places // SECTOR)"),
        ("least by items", "np.bincount(items) * key[2] // SECTOR", "np.bincount(items) // SECTOR"),
        ("least rounded down", "-(-np.bincount(items) * key[2] // SECTOR)", "np.bincount(items) * key[2] // SECTOR"),
        ("asked by lane", "len(items) * key[2])", "len(lanes) * key[2])"),
        ("examples of all blocks", "state.block_of[lanes] == state.block_of[lanes[0]]", "lanes >= 0"),
        ("examples from the first byte", "places[mine].min() // SECTOR * SECTOR", "places[mine].min()"),
        ("masked lanes counted", "[lanes] != 0]", "[lanes] >= 0]"),
        ("guard ignored", "count(key, state, lanes, address(state)[lanes])", "count(key, state, lanes, address(state)[:len(lanes)])"),
        ("width of one element", "// 8 * _length(value)", "// 8"),
        ("whole warps for wide accesses", "lanes // (WARP // max(1, key[2] // BANK_BYTES))", "lanes // WARP"),
        ("no broadcast", "np.unique(parts << 32 | words)", "np.sort(parts << 32 | words)"),
        ("the mean bank", "np.maximum.reduceat(busy, first).sum()", "np.add.reduceat(busy, first).sum()"),
        ("rows of all matrices", "lanes[lanes % WARP < rows]", "lanes[lanes % WARP < 32]"),
        ("one product", "* (len(_active_lanes(state)) // threads)", "* 1"),
        ("no multiply-add", "2 * m * n * k", "m * n * k"),
        ("waits for all", "max(0, len(groups) - keep)", "len(groups)"),
        ("waits for none", "del groups[: max(0, len(groups) - keep)]", "pass"),
        ("open copies lost", "append(int(self._open[block]))", "append(0)"),
        ("open copies kept", "self._open[block] = 0", "pass"),
    )
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutants_are_caught(mutant):
    with pytest.raises((AssertionError, ValueError, IndexError)):
        check_all(mutant.load())


def check_all(module):
    for case in GLOBAL_CASES:
        check_global(module, case)
    for case in SHARED_CASES:
        check_shared(module, case)
    for check in (
        check_requests_per_warp,
        check_example,
        check_masked_copies,
        check_blocks_apart,
        check_in_flight,
        check_flops,
    ):
        check(module)
