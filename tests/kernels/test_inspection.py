"""The microscope on small kernels that Triton compiles; and how kernels travel to the process that compiles."""

import linecache

import pytest
import torch

from ptx_emulator import MemoryFault
from ptx_emulator.inspection import KernelReport, inspect_call, inspect_in
from ptx_emulator.kernel_source import KernelSourceError, kernel_source
from twophase_kernels._triton import tl, triton

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


def test_a_strided_kernel_from_here(compiling, capsys):
    x, y = torch.arange(256.0), torch.zeros(32)
    report = inspect_in(compiling, strided_copy, (1,), (x, y, 8), N=32, num_warps=1)
    assert torch.equal(y, x[::8])
    (load,) = loads(report)
    assert (load.sectors_per_request, load.least_per_request, load.efficiency) == (32, 4, 1 / 8)
    assert load.instruction == "ld.global.b32"
    assert load.source.startswith("test_inspection.py:")
    assert (report.bytes_asked, report.loop) == (256, {})
    text = report.show()
    assert capsys.readouterr().out == text + "\n"
    assert "32.0" in text
    assert "strided_copy for sm_90" in text


def copy_times(num_times: int, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for _ in range(num_times):
        strided_copy[(len(x) // 32,)](x, y, 1, N=32, num_warps=1)
    return y


def test_the_kernel_that_a_wrapper_launches(compiling):
    report = compiling.call(inspect_call, copy_times, 1, torch.arange(96.0), target="sm_80")
    assert (report.kernel, report.target, report.grid) == ("strided_copy", "sm_80", (3, 1, 1))
    assert report.bytes_asked == 3 * 2 * 32 * 4
    for num_times in (0, 2):
        with pytest.raises(ValueError, match=f"copy_times launches {num_times} kernels; one at a time"):
            compiling.call(inspect_call, copy_times, num_times, torch.zeros(32))


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_loop_of_products(compiling, target):
    x, y = (torch.randn(3 * 64, 64).to(torch.float16) for _ in range(2))
    out = torch.zeros(64, 64)
    report = inspect_in(compiling, products, (1,), (x, y, out, 3), target, N=64, num_warps=4, num_stages=3)
    expected = (x.view(3, 64, 64).double() @ y.view(3, 64, 64).double()).sum(0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-2)
    assert report.matrix_flops == 3 * 2 * 64**3
    assert report.bytes_in_flight == 2 * 2 * 64 * 64 * 2  # of three buffers of X and Y one is in use
    assert sum(a.bytes_asked for a in loads(report)) == 2 * 3 * 64 * 64 * 2
    assert report.registers > 0
    assert report.stack_bytes == 0
    assert report.loop["HGMMA" if target == "sm_90" else "HMMA"] > 0
    assert report.loop_instructions == sum(report.loop.values())
    assert report.occupancy("H100").blocks > 0
    with pytest.raises(ValueError, match=r"the cards known here are A100.*got 'V100'"):
        report.occupancy("V100")


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


def test_a_kernel_of_a_cell(compiling):
    """Its faults name the line of the cell."""
    x, y, text = torch.arange(32.0), torch.zeros(32), CELL.replace("OFFSET = 2", "OFFSET = tl.constexpr(2)")
    report = inspect_in(compiling, cell(text)["own"], (1,), (x, y), N=32, num_warps=1)
    assert torch.equal(y, 3 * x + 2)
    assert [a.source for a in report.global_accesses] == ["cell.py:12", "cell.py:13"]
    kernel = cell(text.replace("x_ptr + offs)", "x_ptr + offs + 1)"))["own"]
    with pytest.raises(MemoryFault, match=r"of x_ptr, which has 128.* at cell.py:12"):
        inspect_in(compiling, kernel, (1,), (x, y), N=32, num_warps=1)


def test_refusals():
    with pytest.raises(ValueError, match=r"decorated with @triton\.jit, got <function cell"):
        kernel_source(cell)
    text = CELL.replace("SCALE = tl.constexpr(3.0)", "SCALE = torch.ones(1)")
    with pytest.raises(KernelSourceError, match="helper uses SCALE, a Tensor; kernels use numbers only"):
        kernel_source(cell(text)["own"])
    kernel = cell(CELL)["own"]
    linecache.cache.pop("<ipython-input-7>")
    with pytest.raises(KernelSourceError, match="the source of own is not known"):
        kernel_source(kernel)
