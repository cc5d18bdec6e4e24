"""tl.dot, compiled: every shape of block, transposed or not, every type, against numpy in fp64."""

import platform
import re
from contextlib import contextmanager

import pytest
import torch

from tests.kernels.covering import selected
from tests.kernels.cpu import small_kernels
from tests.kernels.cpu.harness import all_ttir, optimised, run
from triton_on_cpu import generate

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}


def whole_numbers(*shape, dtype=torch.float32, seed=0):
    """Small integers: any order of sums is exact."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(name, m, n, k, turned, dtype, out_dtype):
    a, b = whole_numbers(m, k, dtype=dtype), whole_numbers(k, n, dtype=dtype, seed=1)
    out = torch.zeros(m, n, dtype=out_dtype)
    given = b.to(torch.float64).T.contiguous().to(dtype) if turned else b
    assert run(name, a, given, out) is None
    assert torch.equal(out.double(), a.double() @ b.double() + 1)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", small_kernels.SHAPES, ids=str)
def test_product(shape, turned):
    check(f"product[{' '.join(map(str, shape))} {turned}]", *shape, turned, torch.float32, torch.float32)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", small_kernels.SHAPES, ids=str)
def test_product_of_bf16(shape, turned):
    """Numbers that use all bits of bf16, whose products are seldom exact, against sums in fp64."""
    m, n, k = shape
    a, b = (torch.randn(*s, generator=torch.Generator().manual_seed(s[0])).bfloat16() for s in ((m, k), (k, n)))
    out = torch.zeros(m, n)
    run(f"product[{m} {n} {k} {turned} bf16]", a, b.T.contiguous() if turned else b, out)
    expected, sizes = a.double() @ b.double() + 1, a.double().abs() @ b.double().abs() + 1
    assert ((out - expected).abs() <= k * 2**-24 * sizes).all()


@pytest.mark.parametrize("kind", DTYPES)
def test_product_of_narrow_types(kind):
    check(f"product[{kind}]", 16, 16, 32, True, DTYPES[kind], torch.float32)


@pytest.mark.parametrize("turned", [False, True])
def test_product_of_integers(turned):
    check(f"product[i8 {turned}]", 16, 16, 32, turned, torch.int8, torch.int32)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 16), (33, 70, 40), (1, 5, 7)])
def test_matmul(m, n, k, checked):
    a, b, c = whole_numbers(m, k), whole_numbers(k, n, seed=1), torch.zeros(m, n)
    grid = ((m + 15) // 16, (n + 31) // 32)
    assert run("matmul", a, b, c, m, n, k, grid=grid, checked=checked) is None
    assert torch.equal(c, a @ b)


@pytest.mark.parametrize(
    ("kind", "rows", "in_word", "checked"), selected(("f32", "bf16"), (1, 2, 4, 8, 16), (1, 2, 4), (False, True))
)
def test_as_it_lies(kind, rows, in_word, checked):
    """Neighbours in k lie side by side, or not; beside the 64 columns there are others."""
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    a, b = whole_numbers(rows, 48, dtype=dtype), whole_numbers(48, 70, dtype=dtype, seed=1)
    lying = b.view(48 // in_word, in_word, 70).transpose(1, 2).contiguous()
    out = torch.zeros(rows, 64)
    name = f"pairs[{kind} {rows} {in_word}]"
    assert run(name, a, lying, out, 48, 70, checked=checked) is None
    assert torch.equal(out, a.float() @ b[:, :64].float())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("pairs[f32 4 1]", "product_in_memory"),
        ("pairs[bf16 4 2]", "product_of_pairs"),
        ("pairs[bf16 4 1]", "product_bf16"),
    ],
)
def test_what_is_not_copied(name, function):
    assert f"\n{function}(4, 64, 16, " in generate.generate(all_ttir()[name]).c_source


@pytest.mark.parametrize("checked", [False, True])
def test_the_values_rows_are_asked_for_beside_the_keys(checked):
    """Where two tiles lie at the same offsets, the first one's load prefetches the second."""
    q, k, v = (whole_numbers(*shape, seed=seed) for seed, shape in enumerate(((16, 16), (40, 16), (40, 16))))
    rows, out = torch.randperm(40)[:16].int(), torch.zeros(16, 16)
    assert run("of_rows", q, k, v, rows, out, checked=checked) is None
    assert torch.equal(out, q @ k[rows].T @ v[rows])
    asked = re.findall(
        r"prefetch\(.*arg(\d) \+ .* - .*arg(\d)\)", generate.generate(all_ttir()["of_rows"], checked).c_source
    )
    assert asked == ([] if checked else [("2", "1")]), "v's, where k's row begins"


LESS = ["-mno-amx-bf16", "-mno-amx-bf16 -mno-avx512bf16", "-mno-amx-bf16 -mno-avx512f"]


@contextmanager
def a_processor(without):
    """Without tiles, without the instructions for pairs of bf16 either, and with half of the vector registers."""
    if platform.machine() != "x86_64":
        pytest.skip("these instructions are x86's")
    with optimised(f"-O1 {without}"):
        yield


@pytest.mark.parametrize("without", LESS)
@pytest.mark.parametrize(("kind", "rows"), [("bf16", 4), ("bf16", 16), ("f32", 16), ("f32", 1)])
def test_processors_that_have_less(kind, rows, without):
    with a_processor(without):
        test_as_it_lies(kind, rows, 2, checked=False)


@pytest.mark.parametrize("without", LESS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(16, 32, 64), (4, 64, 32), (2, 16, 16)], ids=str)
def test_bf16_on_processors_that_have_less(shape, turned, without):
    with a_processor(without):
        test_product_of_bf16(shape, turned)


def test_pairs_keep_the_sign_and_the_size_of_bf16():
    """No product of halves is exact by chance: numbers that use all bits of bf16, against sums in fp64."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((8, 48), (48, 64)))
    out = torch.zeros(8, 64)
    run("pairs[bf16 8 2]", a, b.view(24, 2, 64).transpose(1, 2).contiguous(), out, 48, 64)
    expected, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((out - expected).abs() <= 48 * 2**-24 * sizes).all()


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_accumulators_change_places(turns):
    a, b, out = whole_numbers(16, 16), whole_numbers(16, 16, seed=1), torch.zeros(4, 16, 16)
    given = b.clone()
    run("exchanged", a, given, out, turns)
    x, y, z, total = torch.ones(16, 16), torch.zeros(16, 16), torch.zeros(16, 16), torch.zeros(16, 16)
    for turn in range(turns):
        product = a @ (a if turn else b)
        x, y, z, total = y + product, x, z + product, 2 * total + z
    assert torch.equal(out, torch.stack([x, y, z, total]))


def test_sums_are_fp32():
    """fp16 products of 1024 ones and a large number, which fp16 sums would lose."""
    a, b = torch.ones(16, 32, dtype=torch.float16), torch.full((16, 32), 0.5, dtype=torch.float16)
    a[:, 0] = 2048
    b[:, 0] = 1
    out = torch.zeros(16, 16)
    run("product[f16]", a, b, out)
    assert (out == 2048 + 31 * 0.5 + 1).all()
