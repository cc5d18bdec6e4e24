"""Kernels by TMA and by warp specialisation, as Triton compiles them for sm_90, in the compiler's order and in others.

Each is right as it is. Faults planted in its PTX must be named: a wait, an arrival, a fence or a barrier left out, two
blocks that write to one place, a read of what nobody wrote.
"""

import numpy as np
import pytest
import torch

from ptx_emulator import EmulationError, NotCoveredError, emulate, emulated
from tests.kernels.planting import edited
from twophase_kernels._triton import tl, triton

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
SHAPE = (200, 128, 320)  # M, N, K: blocks of 128 x 64, so that rows are left over; 5 steps through 2 buffers
SEEDS = (None, 0, 1, 2)


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIALISED: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """C = A B^T, with maps of the tensors made on the device."""
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=SPECIALISED):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    if OUT != "map":
        rows = (m + tl.arange(0, BM))[:, None]
        if OUT == "pointers, apart":
            rows = ((2 * BM * tl.program_id(0) + 2 * tl.arange(0, BM)) // 2)[:, None]
        tl.store(c_ptr + rows * N + n + tl.arange(0, BN)[None, :], acc.to(c_ptr.dtype.element_ty), mask=rows < M)
    else:
        c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
        c.store([m, n], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def described_kernel(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same, with maps that the host made."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(c.dtype))


def operands(dtype=BF16):
    """A, B, C to write and A B^T; small halves, so that products and sums are exact."""
    (m, n, k), generator = SHAPE, torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (rows, k), generator=generator) / 2 for rows in (m, n))
    want = torch.from_numpy(a.numpy() @ b.numpy().T)
    return a.to(dtype), b.to(dtype), torch.full((m, n), 7, dtype=BF16), want.to(BF16)


def multiply(dtype=BF16, edit=None, seed=None, specialised=False, num_warps=4, out="map"):
    a, b, c, want = operands(dtype)
    with emulated("sm_90", edit, seed=seed) as driver:
        product_kernel[(2, 2)](
            a, b, c, *SHAPE, BM=128, BN=64, BK=64, SPECIALISED=specialised, OUT=out,
            num_warps=num_warps, num_stages=2,
        )  # fmt: skip
    np.testing.assert_array_equal(c.float(), want.float())
    return driver.launched["product_kernel"].machine


def check_products(dtype):
    for specialised, num_warps, num_threads in ((False, 4, 128), (False, 8, 256), (True, 4, 384)):
        for seed in SEEDS:
            machine = multiply(dtype, None, seed, specialised, num_warps)
            assert machine.program.num_threads == num_threads, "a producer and two consumers, or all alike"
            assert machine.executed["wgmma"] > 0


@pytest.mark.parametrize("dtype", [BF16, E4M3, E5M2], ids=str)
def test_products(compiling, dtype):
    compiling.call(check_products, dtype)


def check_described():
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b, c, want = operands()
    blocks = ((a, [128, 64]), (b, [64, 64]), (c, [128, 64]))
    maps = [TensorDescriptor(x, list(x.shape), list(x.stride()), block) for x, block in blocks]
    for seed in SEEDS:
        c.fill_(7)
        emulate(described_kernel, (2, 2), (*maps, SHAPE[2]), seed=seed, BM=128, BN=64, BK=64, num_stages=2)
        np.testing.assert_array_equal(c.float(), want.float())
    maps[0].padding = "nan"
    with pytest.raises(NotCoveredError, match="a tensor descriptor that fills with nan: a"):
        emulate(described_kernel, (2, 2), (*maps, SHAPE[2]), BM=128, BN=64, BK=64, num_stages=2)


def test_maps_that_the_host_made(compiling):
    compiling.call(check_described)


def check_stores_by_pointers():
    multiply(out="pointers")
    multiply(specialised=True, out="pointers, apart")
    with pytest.raises(
        EmulationError, match=r"(block \d writes over what block \d wrote|write different values at once), .* of c_ptr"
    ):
        multiply(specialised=True, out="pointers")


def test_a_bug_of_the_compiler_is_noticed(compiling):
    """Triton 3.7.1 shifts the second consumer's rows twice if the scalar they start from is a row of a load as well."""
    compiling.call(check_stores_by_pointers)


# -- planted faults ---------------------------------------------------------------------------------------------------

WAIT, GONE = r"mbarrier\.try_wait\S* complete, [^;]*;", "mov.pred complete, -1;"
STORE = r"(bulk_group \[%rd\d+, \{(%r\d+), )%r\d+"
IN_USE, UNFILLED = "written while hardware that reads it .* has not been waited for", "before the wait for the copy"
BARRIER_BEFORE = r"bar\.sync\s[^;]*;(?=(?:(?!bar\.sync)[\s\S])*?{})".format  # the last one before something
HANGS = "waits for ever for what others do not do"

# specialised, what is left out or (old, new), which one of several (None: all), what is said
FAULTS = {
    "a consumer does not wait": (False, (WAIT, GONE), 0, UNFILLED),
    "a product is not waited for": (False, r"wgmma\.wait_group\S* +1;", 0, IN_USE),
    "a buffer is filled again before all warps are done": (False, BARRIER_BEFORE(r"2d\.shared"), 2, "writes shared memory that another read"),
    "two blocks write to one place": (False, (STORE, r"\g<1>\g<2>"), 0, r"(block \d writes over what block \d wrote|write different values at once), .* of c_ptr"),
    "a map that nobody wrote": (False, r"\S+ tensormap\.cp_fenceproxy[^;]*;", 0, r"of 128 bytes that nobody wrote, at byte \d+ of scratch"),
    "a map is not acquired": (False, r"\S+ fence\.proxy\.tensormap[^;]*;", 0, r"with no fence\.proxy\.tensormap"),
    "a map whose rows are elsewhere": (False, (r"(global_stride\S* \[ %rd\d+ \+ 0 \], 0x0, )%rd\d+", r"\g<1>%rd1"), 0, "read of 2 bytes at byte"),
    "the producer does not wait": (True, (WAIT, GONE), 0, "more arrivals in one phase|written while|hardware"),
    "a consumer takes A too early": (True, (WAIT, GONE), 4, UNFILLED),
    "one warp says that four are done": (True, BARRIER_BEFORE(r"mbarrier\.arrive\.shared"), None, "that another read"),
    "a role begins before it is told": (True, r"barrier\.sync\s+1;", 0, HANGS),
}  # fmt: skip


def check_fault(specialised, what, which, message):
    old, new = what if isinstance(what, tuple) else (what, "")
    with pytest.raises(EmulationError, match=message):
        multiply(edit=lambda ptx: edited(ptx, old, new, which), specialised=specialised)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_named(compiling, name):
    compiling.call(check_fault, *FAULTS[name])
