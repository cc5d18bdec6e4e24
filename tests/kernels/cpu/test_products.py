"""tl.dot, compiled: every shape of block, transposed or not, every type, against numpy in fp64."""

import ctypes
import platform
import re
from contextlib import contextmanager

import pytest
import torch

from tests.kernels.covering import selected
from tests.kernels.cpu import small_kernels as kernels
from tests.kernels.cpu.harness import build, optimised, run
from twophase_kernels._triton import tl

# (M, N, K)
SHAPES = (16, 32, 64), (8, 32, 64), (4, 64, 32), (2, 64, 32), (2, 16, 16), (4, 8, 16), (16, 8, 16), (64, 16, 32)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}


def whole_numbers(*shape, dtype=torch.float32, seed=0):
    """Small integers: any order of sums is exact."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(a, b, turned, out_dtype=torch.float32):
    """a b + 1, of which b lies as [n, k] if it is `turned`."""
    (m, k), n, out = a.shape, b.shape[1], torch.zeros(a.shape[0], b.shape[1], dtype=out_dtype)
    given = b.view(torch.int8 if b.itemsize == 1 else b.dtype).T.contiguous().view(b.dtype) if turned else b
    acc = tl.int32 if out_dtype == torch.int32 else tl.float32
    assert run(kernels.product, a, given, out, M=m, N=n, K=k, TRANSPOSED=turned, ACC=acc) is None
    return out


def check(shape, turned, dtype, out_dtype=torch.float32):
    m, n, k = shape
    a, b = whole_numbers(m, k, dtype=dtype), whole_numbers(k, n, dtype=dtype, seed=1)
    assert torch.equal(product(a, b, turned, out_dtype).double(), a.double() @ b.double() + 1)


@pytest.mark.parametrize(("shape", "turned"), selected(SHAPES, (False, True)), ids=str)
def test_product(shape, turned):
    check(shape, turned, torch.float32)


@pytest.mark.parametrize(("shape", "turned"), selected(SHAPES, (False, True)), ids=str)
def test_product_of_bf16(shape, turned):
    """Numbers that use all bits of bf16, whose products are seldom exact, against sums in fp64."""
    m, n, k = shape
    a, b = (torch.randn(*s, generator=torch.Generator().manual_seed(s[0])).bfloat16() for s in ((m, k), (k, n)))
    expected, sizes = a.double() @ b.double() + 1, a.double().abs() @ b.double().abs() + 1
    assert ((product(a, b, turned) - expected).abs() <= k * 2**-24 * sizes).all()


@pytest.mark.parametrize("kind", DTYPES)
def test_product_of_narrow_types(kind):
    check((16, 16, 32), True, DTYPES[kind])


@pytest.mark.parametrize("turned", [False, True])
def test_product_of_integers(turned):
    check((16, 16, 32), turned, torch.int8, torch.int32)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 16), (33, 70, 40), (1, 5, 7)])
def test_matmul(m, n, k, checked):
    a, b, c = whole_numbers(m, k), whole_numbers(k, n, seed=1), torch.zeros(m, n)
    grid = ((m + 15) // 16, (n + 31) // 32)
    assert run(kernels.matmul, a, b, c, m, n, k, BM=16, BN=32, BK=16, grid=grid, checked=checked) is None
    assert torch.equal(c, a @ b)


def lying(b, in_word):
    """Neighbours in k side by side, in groups; beside the 64 columns there are others."""
    return b.view(len(b) // in_word, in_word, b.shape[1]).transpose(1, 2).contiguous()


@pytest.mark.parametrize(
    ("kind", "rows", "in_word", "checked"),
    selected(("f32", "bf16"), (1, 2, 4, 8, 16), (1, 2, 4), (False, True), strength=2),
)
def test_as_it_lies(kind, rows, in_word, checked):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    a, b = whole_numbers(rows, 48, dtype=dtype), whole_numbers(48, 70, dtype=dtype, seed=1)
    out = torch.zeros(rows, 64)
    tiles = {"M": rows, "N": 64, "K": 16, "IN": in_word}
    assert run(kernels.pairs, a, lying(b, in_word), out, 48, 70, checked=checked, **tiles) is None
    assert torch.equal(out, a.float() @ b[:, :64].float())


@pytest.mark.parametrize(
    ("dtype", "in_word", "function"),
    [(torch.float32, 1, "in_memory"), (torch.bfloat16, 2, "of_pairs"), (torch.bfloat16, 1, "bf16")],
)
def test_what_is_not_copied(dtype, in_word, function):
    x = torch.zeros(1, dtype=dtype)
    sizes = ctypes.c_int32(48), ctypes.c_int32(70)
    _, generated = build(kernels.pairs, x, x, torch.zeros(1), *sizes, M=4, N=64, K=16, IN=in_word)
    assert f"\nproduct_{function}(4, 64, 16, " in generated.c_source


@pytest.mark.parametrize("checked", [False, True])
def test_the_values_rows_are_asked_for_beside_the_keys(checked):
    """Where two tiles lie at the same offsets, the first one's load prefetches the second."""
    q, k, v = (whole_numbers(*shape, seed=seed) for seed, shape in enumerate(((16, 16), (40, 16), (40, 16))))
    rows, out = torch.randperm(40)[:16].int(), torch.zeros(16, 16)
    assert run(kernels.of_rows, q, k, v, rows, out, N=16, checked=checked) is None
    assert torch.equal(out, q @ k[rows].T @ v[rows])
    _, generated = build(kernels.of_rows, q, k, v, rows, out, N=16, checked=checked)
    asked = re.findall(r"prefetch\(.*arg(\d) \+ .* - .*arg(\d)\)", generated.c_source)
    assert asked == ([] if checked else [("2", "1")]), "v's, where k's row begins"


LESS = "-mno-amx-bf16", "-mno-amx-bf16 -mno-avx512bf16", "-mno-amx-bf16 -mno-avx512f"


@contextmanager
def a_processor(without):
    """Without tiles, without the instructions for pairs of bf16 either, and with half of the vector registers."""
    if platform.machine() != "x86_64":
        pytest.skip("these instructions are x86's")
    with optimised(f"-O1 {without}"):
        yield


@pytest.mark.parametrize(("kind", "rows", "without"), selected(("bf16", "f32"), (1, 4, 16), LESS))
def test_processors_that_have_less(kind, rows, without):
    with a_processor(without):
        test_as_it_lies(kind, rows, 2, checked=False)


@pytest.mark.parametrize(("shape", "turned", "without"), selected(SHAPES[::2], (False, True), LESS), ids=str)
def test_bf16_on_processors_that_have_less(shape, turned, without):
    with a_processor(without):
        test_product_of_bf16(shape, turned)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_accumulators_change_places(turns):
    a, b, out = whole_numbers(16, 16), whole_numbers(16, 16, seed=1), torch.zeros(4, 16, 16)
    given = b.clone()
    run(kernels.exchanged, a, given, out, turns, N=16)
    x, y, z, total = torch.ones(16, 16), torch.zeros(16, 16), torch.zeros(16, 16), torch.zeros(16, 16)
    for turn in range(turns):
        product = a @ (a if turn else b)
        x, y, z, total = y + product, x, z + product, 2 * total + z
    assert torch.equal(out, torch.stack([x, y, z, total]))
