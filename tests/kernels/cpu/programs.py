"""Small kernels that the tests of the driver launch, right ones and wrong ones."""

from contextlib import nullcontext

import triton_on_cpu
from twophase_kernels._triton import tl, triton


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x * 2, mask=offs < n)


@triton.jit
def other(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0) * 3, mask=offs < n)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@triton.jit
def mixed(
    x_ptr,
    extra_ptr,
    out_ptr,
    shift,
    scale,
    flag,
    x_row_stride,
    x_stride,
    out_row_stride,
    out_stride,
    n,
    BLOCK: tl.constexpr,
):
    """A row: x * scale + extra + shift % 2^20 + 100 flag, with what is None or 1 a constant."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < n
    y = tl.load(x_ptr + row * x_row_stride + offs * x_stride, mask=mask, other=0.0) * scale
    if extra_ptr is not None:
        y += tl.load(extra_ptr + row * n + offs, mask=mask, other=0)
    y += (shift & 1048575) * 1.0
    if flag:
        y += 100
    tl.store(out_ptr + row * out_row_stride + offs * out_stride, y, mask=mask)


@triton.jit
def number(out_ptr):
    """Each program's place in the grid."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = x + tl.num_programs(0) * (y + tl.num_programs(1) * z)
    tl.store(out_ptr + place, place)


@triton.jit
def no_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)  # without a mask
    tl.store(out_ptr + offs, x * 2, mask=offs < n)


@triton.jit
def no_mask_of_a_store(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x + 1)


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + offs, mask=offs < n, other=0)
    x = tl.load(x_ptr + index, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x, mask=offs < n)


@triton.jit
def rows(x_ptr, out_ptr, row_stride, n, BLOCK: tl.constexpr):
    """Sums a row; `row_stride` may be wrong."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(x))


@triton.jit
def endless(x_ptr, step):
    i = 0
    while i < 10:
        tl.store(x_ptr, i)
        i += step


@triton.jit
def far(x_ptr, distance):
    tl.store(x_ptr + distance, 1.0)


@triton.jit
def count(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=offs < n)


@triton.jit
def ends(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A loop whose length the argument gives."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x_ptr + start + offs, mask=start + offs < n, other=0.0)
    tl.store(out_ptr, tl.sum(total))


@triton.jit
def asserts(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.device_assert(x < 5, "five is too many")


def with_driver(check, threads=None, limit_s=None):
    """A check, in a child, with a driver installed anew and no kernel launched yet; with a limit, checked."""
    forget()
    triton_on_cpu.install()
    triton_on_cpu.set_num_threads(threads)
    try:
        with triton_on_cpu.checked(limit_s) if limit_s else nullcontext():
            check()
    finally:
        triton_on_cpu.install()
        triton_on_cpu.set_num_threads(None)


def forget():
    """Launchers of an earlier driver."""
    for kernel in globals().values():
        for one in (kernel, getattr(kernel, "fn", None)):
            if isinstance(one, triton.JITFunction):
                one.device_caches.clear()
