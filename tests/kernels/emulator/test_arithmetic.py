"""Each family of instructions that compute, against numpy, torch or plain Python."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from ptx_emulator import NotCoveredError
from tests.kernels.emulator.programs import run, tiled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 1e-40, -1e-45, 3.4e38, 65504.0, 65520.0, 6e-8, 2.0**-24, 448.0, 464.5]


def floats(count=256, seed=0):
    """fp32 of every magnitude, the special ones first."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x[: len(SPECIAL)] = SPECIAL
    return x


def integers(dtype, count=256, seed=0):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(limits.min, limits.max, count, dtype, endpoint=True)
    x[:6] = limits.min, limits.max, 0, 1, limits.max, 7
    return x


def one(line, *inputs):
    """The first register of one instruction after it; inputs are %r1, %r2, ... or %rs1, %rd1, %p1, as wide as the arrays."""
    names = {1: "p", 2: "rs", 4: "r", 8: "rd"}
    registers = {}
    for i, values in enumerate(inputs, 1):
        values = np.asarray(values)
        registers[f"%{'p' if values.dtype == bool else names[values.itemsize]}{i}"] = values
    count = max((np.asarray(values).size for values in inputs), default=32)
    return run(line, registers, threads=count)[re.search(r"%\w+", line)[0]]


def same(got, want):
    """Bit for bit, any NaN for any other."""
    want = np.asarray(want)
    got = got.view(want.dtype)
    both = np.isnan(got) & np.isnan(want) if want.dtype.kind == "f" else np.zeros(want.shape, bool)
    bits = f"u{want.itemsize}"
    np.testing.assert_array_equal(np.where(both, 0, got.view(bits)), np.where(both, 0, want.view(bits)))


def numpy_of(tensor):
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]).numpy()


# -- floats -----------------------------------------------------------------------------------------------------------


def test_float_arithmetic():
    x, y, z = floats(seed=0), floats(seed=1)[::-1].copy(), floats(seed=2)
    with np.errstate(all="ignore"):
        same(one("add.f32 %r9, %r1, %r2;", x, y), x + y)
        same(one("sub.f32 %r9, %r1, %r2;", x, y), x - y)
        same(one("mul.f32 %r9, %r1, %r2;", x, y), x * y)
        same(one("div.rn.f32 %r9, %r1, %r2;", x, y), x / y)
        same(one("neg.f32 %r9, %r1;", x), -x)
        same(one("abs.f32 %r9, %r1;", x), np.abs(x))
        fused = (x.astype(np.float64) * y + z).astype(np.float32)
        same(one("fma.rn.f32 %r9, %r1, %r2, %r3;", x, y, z), fused)


def test_fma_rounds_once():
    """(1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, all of which a rounded product would lose."""
    x, z = np.float32([1 + 2**-12] * 32), np.float32([-(1 + 2**-11)] * 32)
    same(one("fma.rn.f32 %r9, %r1, %r1, %r2;", x, z), np.float32([2.0**-24] * 32))
    # Of fp16 and bf16 too: 1.0009765625^2 - 1.001953125 = 2^-20.
    x, z = np.float16([1 + 2**-10] * 32), np.float16([-(1 + 2**-9)] * 32)
    same(one("fma.rn.f16 %rs9, %rs1, %rs1, %rs2;", x, z), np.float16([2.0**-20] * 32))


def test_flushing():
    """.ftz takes subnormals for zeros of their sign, as operands and as results; without it they stay."""
    tiny, two = tiled([1e-40, -1e-40, 2.0**-126, -(2.0**-126)], np.float32), np.full(32, 0.5, np.float32)
    same(one("mul.ftz.f32 %r9, %r1, %r2;", tiny, two), tiled([0.0, -0.0, 0.0, -0.0], np.float32))
    same(one("mul.f32 %r9, %r1, %r2;", tiny, two), tiny * two)
    big = np.full(32, 2.0**30, np.float32)
    same(one("mul.ftz.f32 %r9, %r1, %r2;", tiny, big), np.where(np.abs(tiny) < 1e-38, tiny * 0, tiny * big))
    same(one("ex2.approx.ftz.f32 %r9, %r1;", np.full(32, -130, np.float32)), np.zeros(32, np.float32))
    same(one("ex2.approx.f32 %r9, %r1;", np.full(32, -130, np.float32)), np.full(32, 2.0**-130, np.float32))
    zero = one("setp.eq.ftz.f32 %p9, %r1, 0f00000000;", tiny)
    np.testing.assert_array_equal(zero, np.abs(tiny) < 1e-38)
    assert not one("setp.eq.f32 %p9, %r1, 0f00000000;", tiny).any()


def test_halves():
    """fp16, bf16 and pairs of them: rounded to nearest even once."""
    x, y = (torch.from_numpy(floats(seed=s)) for s in (3, 4))
    for dtype, kind in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        a, b = x.to(dtype), y.to(dtype)
        for name, want in (("add", a + b), ("mul", a * b), ("sub", a - b)):
            got = one(f"{name}.rn.{kind} %rs9, %rs1, %rs2;", numpy_of(a), numpy_of(b))
            got = torch.from_numpy(got.view(np.int16)).view(dtype)
            assert torch.equal(got.nan_to_num(7), want.nan_to_num(7)), (name, kind)
        pairs = [numpy_of(v).view(np.uint32) for v in (a, b)]
        got = one(f"mul.rn.{kind}x2 %r9, %r1, %r2;", *pairs)
        got = torch.from_numpy(got.view(np.int16)).view(dtype)
        assert torch.equal(got.nan_to_num(7), (a * b).nan_to_num(7)), kind


def test_min_max():
    """A number wins against NaN, unless .NaN is said; min and max of three."""
    x, y, z = tiled([1, NAN, NAN, -INF, 3], np.float32), tiled([2, 2, NAN, 5, NAN], np.float32), np.float32([0] * 32)
    same(one("min.f32 %r9, %r1, %r2;", x, y), tiled([1, 2, NAN, -INF, 3], np.float32))
    same(one("max.f32 %r9, %r1, %r2;", x, y), tiled([2, 2, NAN, 5, 3], np.float32))
    same(one("max.NaN.f32 %r9, %r1, %r2;", x, y), tiled([2, NAN, NAN, 5, NAN], np.float32))
    same(one("max.f32 %r9, %r1, %r2, %r3;", -x, -y, z), tiled([0, 0, 0, INF, 0], np.float32))
    a, b = integers(np.int32, seed=1), integers(np.int32, seed=2)
    same(one("min.s32 %r9, %r1, %r2;", a, b), np.minimum(a, b))
    same(one("max.u32 %r9, %r1, %r2;", a, b), np.maximum(a.view(np.uint32), b.view(np.uint32)))


# -- comparisons ------------------------------------------------------------------------------------------------------


def test_comparisons():
    """With a NaN none of eq, ne, lt, ... holds, and each of equ, neu, ltu, ... does."""
    x = tiled([1, 2, NAN, 1, NAN], np.float32)
    y = tiled([2, 1, 1, 1, NAN], np.float32)
    nan = np.isnan(x) | np.isnan(y)
    plain = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    for name, want in plain.items():
        got = one(f"setp.{name}.f32 %p9, %r1, %r2;", x, y)
        np.testing.assert_array_equal(got, want & ~nan, name)
        got = one(f"setp.{name}u.f32 %p9, %r1, %r2;", x, y)
        np.testing.assert_array_equal(got, want | nan, name + "u")
    np.testing.assert_array_equal(one("setp.num.f32 %p9, %r1, %r2;", x, y), ~nan)
    np.testing.assert_array_equal(one("setp.nan.f32 %p9, %r1, %r2;", x, y), nan)
    a, b = tiled([-1, 5, 3], np.int32), tiled([1, -5, 3], np.int32)
    np.testing.assert_array_equal(one("setp.lt.s32 %p9, %r1, %r2;", a, b), a < b)
    unsigned = a.view(np.uint32) < b.view(np.uint32)
    np.testing.assert_array_equal(one("setp.lt.u32 %p9, %r1, %r2;", a, b), unsigned)
    np.testing.assert_array_equal(one("setp.hs.u32 %p9, %r1, %r2;", a, b), ~unsigned)
    q = tiled([True, False], bool)
    for combine, want in (("and", (a < b) & q), ("or", (a < b) | q), ("xor", (a < b) ^ q)):
        got = one(f"setp.lt.{combine}.s32 %p9, %r1, %r2, %p3;", a, b, q)
        np.testing.assert_array_equal(got, want, combine)


# -- integers ---------------------------------------------------------------------------------------------------------


def test_integers():
    for kind, dtype in (("s32", np.int32), ("u32", np.uint32), ("s64", np.int64), ("u64", np.uint64)):
        a, b = integers(dtype, seed=1), integers(dtype, seed=2)
        r = "rd" if dtype().itemsize == 8 else "r"
        with np.errstate(over="ignore"):
            for name, want in (("add", a + b), ("sub", a - b), ("mul.lo", a * b)):
                same(one(f"{name}.{kind} %{r}9, %{r}1, %{r}2;", a, b), want)
            same(one(f"mad.lo.{kind} %{r}9, %{r}1, %{r}2, %{r}1;", a, b), a * b + a)
        nonzero = np.where(b == 0, dtype(3), b)
        quotients = [
            abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, nonzero, strict=True)
        ]
        rests = [int(x) - q * int(y) for x, y, q in zip(a, nonzero, quotients, strict=True)]
        wrapped = np.array([q % 2 ** (8 * dtype().itemsize) for q in quotients], f"u{dtype().itemsize}")
        same(one(f"div.{kind} %{r}9, %{r}1, %{r}2;", a, nonzero), wrapped)
        same(one(f"rem.{kind} %{r}9, %{r}1, %{r}2;", a, nonzero), np.array(rests, dtype))
    a = integers(np.int32)
    same(one("neg.s32 %r9, %r1;", a), -a)
    same(one("abs.s32 %r9, %r1;", a), np.abs(a))


def test_wide_products():
    for kind, dtype in (("s32", np.int32), ("u32", np.uint32)):
        a, b = integers(dtype, seed=3), integers(dtype, seed=4)
        wide = a.astype(np.int64 if kind == "s32" else np.uint64) * b
        same(one(f"mul.wide.{kind} %rd9, %r1, %r2;", a, b), wide)
        same(one(f"mul.hi.{kind} %r9, %r1, %r2;", a, b), (wide >> 32).astype(np.uint32))
        same(one(f"mad.wide.{kind} %rd9, %r1, %r2, 5;", a, b), wide + 5)


def test_shifts():
    """Beyond the width a shift gives 0, or the sign; it does not wrap around."""
    a, by = integers(np.uint32), np.resize(np.uint32([0, 1, 7, 31, 32, 33, 64, 2**31]), 256)
    left = np.array([int(x) << min(int(s), 64) & 0xFFFFFFFF for x, s in zip(a, by, strict=True)], np.uint32)
    right = np.array([int(x) >> int(s) for x, s in zip(a, by, strict=True)], np.uint32)
    signed = np.array([int(x) >> int(s) for x, s in zip(a.view(np.int32), by, strict=True)], np.int32)
    same(one("shl.b32 %r9, %r1, %r2;", a, by), left)
    same(one("shr.u32 %r9, %r1, %r2;", a, by), right)
    same(one("shr.s32 %r9, %r1, %r2;", a, by), signed)
    low, high = integers(np.uint32, seed=1), integers(np.uint32, seed=2)
    both = [int(h) << 32 | int(x) for x, h in zip(low, high, strict=True)]
    for mode, amount in (("wrap", by & 31), ("clamp", np.minimum(by, 32))):
        want = np.array([(x << int(s) >> 32) & 0xFFFFFFFF for x, s in zip(both, amount, strict=True)], np.uint32)
        same(one(f"shf.l.{mode}.b32 %r9, %r1, %r2, %r3;", low, high, by), want)
        want = np.array([x >> int(s) & 0xFFFFFFFF for x, s in zip(both, amount, strict=True)], np.uint32)
        same(one(f"shf.r.{mode}.b32 %r9, %r1, %r2, %r3;", low, high, by), want)


def test_bit_fields():
    """bfe as the PTX ISA's loop over bits has it; bfi likewise."""
    a, b = integers(np.uint32, 512, 1), integers(np.uint32, 512, 2)
    pairs = list(itertools.product((0, 1, 5, 17, 31, 32, 40), (0, 1, 4, 15, 31, 32, 50)))
    start = np.resize(np.array([p for p, _ in pairs], np.uint32), 512)
    length = np.resize(np.array([n for _, n in pairs], np.uint32), 512)

    def extracted(x, pos, count, is_signed):
        sign = 0 if not is_signed or count == 0 else x >> min(pos + count - 1, 31) & 1
        return sum((x >> (pos + i) & 1 if i < count and pos + i <= 31 else sign) << i for i in range(32))

    def inserted(x, y, pos, count):
        for i in range(count):
            if pos + i <= 31:
                y = y & ~(1 << pos + i) | (x >> i & 1 if i <= 31 else 0) << pos + i
        return y

    for kind, is_signed in (("u32", False), ("s32", True)):
        want = [extracted(*map(int, row), is_signed) for row in zip(a, start, length, strict=True)]
        same(one(f"bfe.{kind} %r9, %r1, %r2, %r3;", a, start, length), np.array(want, np.uint32))
    want = [inserted(*map(int, row)) for row in zip(a, b, start, length, strict=True)]
    same(one("bfi.b32 %r9, %r1, %r2, %r3, %r4;", a, b, start, length), np.array(want, np.uint32))


def test_bytes_and_bits():
    a, b, c = (integers(np.uint32, seed=s) for s in (1, 2, 3))

    def permuted(x, y, choices):
        source = (y << 32 | x).to_bytes(8, "little")
        chosen = []
        for i in range(4):
            byte = source[choices >> 4 * i & 7]
            chosen.append((255 if byte & 128 else 0) if choices >> 4 * i & 8 else byte)
        return int.from_bytes(bytes(chosen), "little")

    want = [permuted(*map(int, row)) for row in zip(a, b, c & 0xFFFF, strict=True)]
    same(one("prmt.b32 %r9, %r1, %r2, %r3;", a, b, c & np.uint32(0xFFFF)), np.array(want, np.uint32))
    same(one("lop3.b32 %r9, %r1, %r2, %r3, 0xEA;", a, b, c), a & b | c)
    same(one("lop3.b32 %r9, %r1, %r2, %r3, 0x96;", a, b, c), a ^ b ^ c)
    same(one("lop3.b32 %r9, %r1, %r2, %r3, 0xE4;", a, b, c), np.bitwise_or(a & c, b & ~c))
    for name, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        same(one(f"{name}.b32 %r9, %r1, %r2;", a, b), want)
    same(one("not.b32 %r9, %r1;", a), ~a)
    p, q = tiled([True, True, False, False], bool), tiled([True, False], bool)
    np.testing.assert_array_equal(one("xor.pred %p9, %p1, %p2;", p, q), p ^ q)
    np.testing.assert_array_equal(one("not.pred %p9, %p1;", p), ~p)
    same(one("popc.b32 %r9, %r1;", a), np.array([int(x).bit_count() for x in a], np.uint32))


# -- conversions ------------------------------------------------------------------------------------------------------


def test_to_halves():
    x = torch.from_numpy(floats(512, seed=6))
    # Halfway between two numbers, and next to it: ties go to the even one.
    x[100:103] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])
    for dtype, kind in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        got = torch.from_numpy(one(f"cvt.rn.{kind}.f32 %rs9, %r1;", x.numpy()).view(np.int16))
        want = x.to(dtype)
        assert torch.equal(got.view(dtype).isnan(), want.isnan())
        assert torch.equal(got[~want.isnan()], want.view(torch.int16)[~want.isnan()])
        back = one(f"cvt.f32.{kind} %r9, %rs1;", numpy_of(want))
        same(back, want.float().numpy())
        y = x.flip(0).contiguous()
        got = one(f"cvt.rn.{kind}x2.f32 %r9, %r1, %r2;", x.numpy(), y.numpy()).view(np.int16)
        want = torch.stack([y.to(dtype), x.to(dtype)], 1)  # the first operand is the upper half
        assert torch.equal(torch.from_numpy(got).view(dtype).nan_to_num(7), want.flatten().nan_to_num(7))


def test_e4m3():
    """Both ways, against torch: every code, the middles of two numbers and what is next to them; too large saturates."""
    codes = np.arange(256, dtype=np.uint16)
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (values[1:127] + values[:126]) / 2
    x = torch.cat(
        [values, middles, -middles, middles.nextafter(torch.tensor(500.0)), torch.tensor([500, -1e9, INF, -INF])]
    )
    want = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    got = one("cvt.rn.satfinite.e4m3x2.f32 %rs9, 0f3F800000, %r1;", x.numpy())
    np.testing.assert_array_equal(got & 255, np.where(x.isnan(), 0x7F, want))
    np.testing.assert_array_equal(got >> 8, 0x38)  # 1.0 on top
    got = one("cvt.rn.f16x2.e4m3x2 %r9, %rs1;", codes << 8 | codes[::-1]).view(np.float16)
    same(got.reshape(-1, 2)[:, 1].copy(), values.half().numpy())
    same(got.reshape(-1, 2)[:, 0].copy(), values.flip(0).half().numpy())


def test_to_integers():
    """Rounded as named, clipped to the range; NaN becomes 0."""
    x = tiled([0.5, 1.5, -0.5, -1.5, 2.7, -2.7, INF, -INF, NAN, 3e9, -3e9, 1e19, -1e19, 255.9, 0.0], np.float32, 60)
    modes = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for mode, function in modes.items():
        for kind, dtype in (("s32", np.int32), ("u32", np.uint32), ("s64", np.int64)):
            limits = np.iinfo(dtype)
            numbers = [function(min(max(n, -1e20), 1e20)) if n == n else 0 for n in x.tolist()]
            want = np.array([max(limits.min, min(limits.max, n)) for n in numbers], dtype)
            same(one(f"cvt.{mode}.{kind}.f32 {'%rd9' if kind == 's64' else '%r9'}, %r1;", x), want)
    same(one("cvt.rmi.f32.f32 %r9, %r1;", x), np.floor(x))
    same(one("cvt.sat.f32.f32 %r9, %r1;", tiled([-1, 0.5, 7], np.float32)), tiled([0, 0.5, 1], np.float32))


def test_from_integers():
    x = integers(np.int64, seed=9)
    x[10] = 2**60 + 2**36 + 1  # just above the middle of two fp32 numbers, but not in fp64
    same(one("cvt.rn.f32.s64 %r9, %rd1;", x), x.astype(np.float32))
    assert one("cvt.rn.f32.s64 %r9, %rd1;", x).view(np.float32)[10] == 2.0**60 + 2.0**37
    y = integers(np.uint32, seed=9)
    signed, low = y.view(np.int32), y.astype(np.uint16)
    for line, given, want in (
        ("cvt.rn.f32.u32 %r9, %r1;", y, y.astype(np.float32)),
        ("cvt.rn.f32.s32 %r9, %r1;", y, signed.astype(np.float32)),
        ("cvt.rn.f16.s32 %rs9, %r1;", y >> 20, (y >> 20).astype(np.float16)),
        ("cvt.rn.f16.s8 %rs9, %rs1;", low, y.astype(np.int8).astype(np.float16)),
        ("cvt.s64.s32 %rd9, %r1;", y, signed.astype(np.int64)),
        ("cvt.u64.u32 %rd9, %r1;", y, y.astype(np.uint64)),
        ("cvt.s32.s8 %r9, %rs1;", low, y.astype(np.int8).astype(np.int32)),
        ("cvt.u32.u16 %r9, %rs1;", low, low.astype(np.uint32)),
        ("cvt.u16.u32 %rs9, %r1;", y, low),
    ):
        same(one(line, given), want)


NOT_COVERED = (
    "add.rz.f32 %r9, %r1, %r1;", "fma.rn.relu.f16 %rs9, %rs1, %rs1, %rs1;", "min.xorsign.abs.f32 %r9, %r1, %r1;",
    "mul.hi.u64 %rd9, %rd1, %rd1;", "cvt.rz.f16.f32 %rs9, %r1;", "cvt.sat.s32.f32 %r9, %r1;",
    "prmt.b32.f4e %r9, %r1, %r1, %r1;", "bfi.b64 %rd9, %rd1, %rd1, 1, 1;", "setp.lt.s32 %p1|%p2, %r1, %r1;",
    "lop3.b32 %r9, %r1, %r1, %r1, %r1;", "add.s32 %r9, %r1, {%r1, %r2};", "add.s32 %r9, %r1, %unknown;",
)  # fmt: skip


@pytest.mark.parametrize("line", NOT_COVERED)
def test_forms_that_are_not_covered_are_refused_when_reached(line):
    with pytest.raises(NotCoveredError, match="not covered") as caught:
        run(line)
    assert line.rstrip(";") in str(caught.value)
    run(f"bra $L__end;\n{line}\n$L__end:")  # and not before


def test_what_is_read_before_it_is_written_is_garbage():
    assert (one("mov.b32 %r9, %r5;") == 0xDEADBEEF).all()
