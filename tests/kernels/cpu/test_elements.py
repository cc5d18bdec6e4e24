"""Elementwise operations, compiled: against torch and numpy, in every type, over edge cases.

An expression is compiled as a kernel has it, and evaluated with numpy's or torch's functions in place of `tl`'s.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.kernels.cpu import programs
from tests.kernels.cpu import small_kernels as kernels
from tests.kernels.cpu.harness import run, ttir_of
from tests.kernels.cpu.small_kernels import table
from triton_on_cpu.generate import generate
from triton_on_cpu.ttir import NotSupportedError

DTYPES = {
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u32": torch.uint32,
    "u64": torch.uint64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
}  # fmt: skip
INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 1.5, -2.75, 3e-8, 1e-40, 65504.0, -1e30, 3e38, INF, -INF, NAN, 0.1, 1e-3]
IN_TORCH = SimpleNamespace(
    minimum=lambda a, b, propagate_nan=False: (torch.minimum if propagate_nan else torch.fmin)(a, b),
    maximum=lambda a, b, propagate_nan=False: (torch.maximum if propagate_nan else torch.fmax)(a, b),
    PropagateNan=SimpleNamespace(ALL=True), fma=lambda a, b, c: a * b + c, div_rn=torch.divide, sqrt_rn=torch.sqrt,
    **{name: getattr(torch, name) for name in ("abs", "where", "clamp", "exp", "exp2", "log", "log2", "sqrt", "rsqrt")},
    **{name: getattr(torch, name) for name in ("sin", "cos", "floor", "ceil", "sigmoid", "erf")},
)  # fmt: skip


def evaluated(expressions, tl, *inputs):
    """What each expression is of a, or of a and b."""
    names = dict(zip("ab", inputs, strict=False)) | {"tl": tl}
    return [eval(text, names) for text in expressions]


def compiled(expressions, dtype, *inputs):
    """The same, of a kernel: [expressions, elements]."""
    kernel = table(*expressions, inputs="abc"[: len(inputs)])
    n = inputs[0].numel()
    out = torch.zeros(len(expressions), n * dtype.itemsize, dtype=torch.uint8).view(dtype)
    assert run(kernel, *inputs, out, N=n) is None
    return out


def pairs_of_integers(kind, n=32):
    """Two rows: small and large numbers, both limits, and their neighbours."""
    numpy_kind = np.dtype(kind.replace("i", "int").replace("u", "uint").replace("uintnt", "uint"))
    info = np.iinfo(numpy_kind)
    rng = np.random.default_rng(0)
    special = [info.min, info.max, 0, 1, 7, 8, info.max - 1, info.min + 1, 3, 2]
    a = np.array([*special, *rng.integers(info.min, info.max, n - 10, numpy_kind, endpoint=True)], dtype=numpy_kind)
    b = np.roll(a, 3)
    b[b == 0] = 1
    return a, b


def same_bits(actual, expected):
    """Equal, also in the sign of zeros; NaN equals NaN."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if actual.dtype.is_floating_point:
        numbers = ~torch.isnan(expected.float())
        assert torch.equal(torch.signbit(actual.float())[numbers], torch.signbit(expected.float())[numbers])


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# As a kernel has it, and as Python's integers do; c is a number of bits.
INTEGERS = {text: text for text in ("a + b", "a - b", "a * b", "a & b", "a | b", "a ^ b", "-a", "~a")}
INTEGERS |= {"tl.minimum(a, b)": "min(a, b)", "tl.maximum(a, b)": "max(a, b)"}
INTEGERS |= {text: text for text in ("a << c", "a >> c", "a << 3", "a >> 3")}
DIVISION = {f"a // {b}": f"truncated(a, {b})" for b in ("b", 7)} | {
    f"a % {b}": f"a - {b} * truncated(a, {b})" for b in ("b", 8)
}


def wrapped(expressions, dtype, *inputs):
    """What Python's integers give, in so many bits."""
    half = 1 << 8 * dtype.itemsize - 1
    rows = zip(*(values.tolist() for values in inputs), strict=True)
    names = [dict(zip("abc", row, strict=False)) | {"truncated": truncated} for row in rows]
    return [[(eval(text, each) + half) % (2 * half) - half for each in names] for text in expressions]


def signed(out):
    return out.numpy().view(f"int{8 * out.itemsize}").tolist()


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64", "u8", "u32", "u64"])
def test_integers(kind):
    """They wrap around, and quotients truncate; shifted by as many bits as there are or more, only the sign is left."""
    a, b = pairs_of_integers(kind)
    c = (np.arange(32) * 3 % (8 * a.itemsize + 3)).astype(a.dtype)
    expressions = INTEGERS | DIVISION
    found = compiled(expressions, DTYPES[kind], *map(torch.from_numpy, (a, b, c)))
    assert signed(found) == wrapped(expressions.values(), a.dtype, a, b, c)


@pytest.mark.parametrize("kind", ["i32", "u32", "i64", "u8"])
def test_division_by_zero_does_not_trap(kind):
    a, _ = pairs_of_integers(kind)
    found = compiled(DIVISION, DTYPES[kind], torch.from_numpy(a), torch.from_numpy(np.zeros_like(a)))
    assert signed(found)[3:] == wrapped([DIVISION["a % 8"]], a.dtype, a)


@pytest.mark.parametrize("kind", ["i32", "u32", "i8", "f32", "bf16"])
def test_comparisons(kind):
    if kind in ("f32", "bf16"):
        a, b = (torch.tensor(x * 2).to(DTYPES[kind]) for x in (FLOATS, FLOATS[-1:] + FLOATS[:-1]))
        b[16:] = a[16:]
    else:
        a, b = map(torch.from_numpy, pairs_of_integers(kind))
        b.view(torch.int8)[:16] = a.view(torch.int8)[:16]
    comparisons = ("a < b", "a <= b", "a > b", "a >= b", "a == b", "a != b")
    wide = (x.to(torch.int64 if kind[0] in "iu" else x.dtype) for x in (a, b))
    same_bits(compiled(comparisons, torch.int8, a, b), torch.stack(evaluated(comparisons, None, *wide)).to(torch.int8))


def pairs_of_floats(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.cat([torch.tensor(FLOATS * 2), torch.randn(32, generator=generator) * 3])
    b = torch.cat([torch.tensor(FLOATS).roll(5), torch.tensor(FLOATS), torch.randn(32, generator=generator)])
    return a.to(dtype), b.to(dtype)


EITHER_ZERO = (
    "tl.minimum(a, b)", "tl.maximum(a, b)",
    "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)", "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
)  # fmt: skip
OF_FLOATS = ("a + b", "a - b", "a * b", "a / b", *EITHER_ZERO, "-a", "tl.abs(a)", "tl.where(a < b, a, b)")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_floats_are_rounded_once(kind):
    a, b = pairs_of_floats(DTYPES[kind])
    clamp = "tl.clamp(a, -1.0, 1.0)"
    *found, clamped = compiled((*OF_FLOATS, clamp), DTYPES[kind], a, b)
    exact = evaluated([text.replace("-a", "0 - a") for text in OF_FLOATS], IN_TORCH, a.double(), b.double())
    for text, row, expected in zip(OF_FLOATS, found, exact, strict=True):
        if text in EITHER_ZERO:
            torch.testing.assert_close(row, expected.to(row.dtype), rtol=0, atol=0, equal_nan=True, msg=text)
        else:
            same_bits(row, expected.to(row.dtype))
    numbers = ~torch.isnan(a)
    same_bits(clamped[numbers], a.clamp(-1.0, 1.0)[numbers])


FUNCTIONS = [
    *(f"tl.{name}(a)" for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil")),
    "tl.sigmoid(a)", "tl.erf(a)", "tl.fma(a, a, a)",
]  # fmt: skip
OF_FP32 = ["tl.div_rn(a, a + 1.0)", "tl.sqrt_rn(a)"]
# Beside 3 units of the last place: where a result is a difference of larger numbers, or subnormal.
ABSOLUTE = {"tl.sin(a)": 1e-6, "tl.cos(a)": 1e-6, "tl.sigmoid(a)": 1e-43, "tl.fma(a, a, a)": 2e-6, OF_FP32[0]: 1e-6}


@pytest.mark.parametrize(("kind", "rtol"), [("f32", 4e-7), ("f64", 1e-13)])
def test_functions(kind, rtol):
    """Within 3 units of the last place or so, subnormal results too; special values exactly."""
    special = [
        0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 88.7, 89.5, -87.5, -100.0, -104.5, 127.9, 128.1, -130.0, -149.0, -151.0,
        1e-40, 1.4e-45, 3e38, 0.999999, 1.000001,
    ]  # fmt: skip
    special = torch.tensor(special)
    x = torch.cat([special, torch.randn(106, generator=torch.Generator().manual_seed(0)) * 8]).to(DTYPES[kind])
    functions = FUNCTIONS + (OF_FP32 if kind == "f32" else [])
    expected = evaluated(functions, IN_TORCH, x.double())
    for text, row, want in zip(functions, compiled(functions, x.dtype, x), expected, strict=True):
        relative = 3 * rtol if "fma" in text else rtol
        absolute = ABSOLUTE.get(text, 1e-44) if kind == "f32" else 1e-14
        message = f"{text}: {{}}".format
        torch.testing.assert_close(row, want.to(x.dtype), rtol=relative, atol=absolute, equal_nan=True, msg=message)


def conversion_inputs(source, target):
    dtype = DTYPES[source]
    if source in ("e4m3", "i8", "u8"):
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    generator = torch.Generator().manual_seed(1)
    if not dtype.is_floating_point:
        return torch.from_numpy(pairs_of_integers(source, 256)[0])
    wide = torch.randn(128, generator=generator).double().exp().float() ** 3
    x = torch.cat([torch.tensor(FLOATS * 2), torch.randn(96, generator=generator), wide])
    if target in ("e4m3", "f16", "bf16"):  # halves between two numbers, and their neighbours
        grid = torch.arange(-20, 21).float() * 2.0**-10
        x[:82] = torch.cat([grid, grid.nextafter(torch.tensor(INF))])
        x[82:114] = torch.linspace(1.0, 3.0, 32)
        x[114:120] = torch.tensor([2049.0, 2051.0, 65519.0, 65520.0, -70000.0, 1e-7])
        x[120:124] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -5.5e-5, 2.5 * 2.0**-16])
        x[124:126] = torch.tensor([0x7FFFFFFF, 0x7F800001], dtype=torch.int32).view(torch.float32)
    return (x.abs() if target.startswith("u") else x).to(dtype)


def whole(x, limits):
    """A float as an integer, as a GPU has it: towards zero, within the limits, NaN as 0."""
    if x != x:
        return 0
    return limits.max if x == INF else limits.min if x == -INF else max(limits.min, min(limits.max, int(x)))


def converted(x, target):
    """torch's conversion; saturating to fp8, and from floats to integers."""
    dtype = DTYPES[target]
    if target == "e4m3":
        largest = torch.finfo(dtype).max
        return x.float().clamp(-largest, largest).to(dtype)
    if x.dtype.is_floating_point and not dtype.is_floating_point:
        limits = torch.iinfo({"i64": torch.int64, "u32": torch.uint32}.get(target, torch.int32))
        return torch.tensor([whole(value, limits) for value in x.tolist()]).to(dtype)
    return x.to(torch.int64).to(dtype) if x.dtype == torch.uint32 else x.to(dtype)


CONVERSIONS = [
    ("f32", "f16"), ("f32", "bf16"), ("f32", "e4m3"), ("f32", "i32"), ("f32", "i8"), ("f32", "i64"),
    ("f32", "u32"), ("f16", "f32"), ("bf16", "f32"), ("e4m3", "f32"), ("f16", "bf16"), ("e4m3", "f16"),
    ("i32", "f32"), ("i64", "f32"), ("u32", "f32"), ("i8", "i32"), ("u8", "i32"), ("i32", "i8"), ("i64", "i32"),
    ("i32", "bf16"), ("f64", "f32"), ("f64", "i64"), ("f32", "f64"), ("f16", "e4m3"), ("f64", "bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), CONVERSIONS)
def test_conversions(source, target):
    x = conversion_inputs(source, target)
    (out,) = compiled(["a.to(out_ptr.dtype.element_ty)"], DTYPES[target], x)
    expected = converted(x, target)
    if target == "e4m3":
        same_bits(out.float(), expected.float())
    elif target == "u32":
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
    else:
        same_bits(out, expected)


BITCASTS = ["f32 i32", "i32 f32", "f16 i16", "i16 bf16", "f64 i64", "i64 f64", "i8 e4m3"]


@pytest.mark.parametrize(("source", "target"), [pair.split() for pair in BITCASTS])
def test_bits_keep_their_meaning(source, target):
    size = DTYPES[source].itemsize
    bits = torch.randint(0, 256, (256 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    bits[: 2 * size] = torch.tensor([0] * (size - 1) + [0x80] + [1] + [0] * (size - 1), dtype=torch.uint8)
    x = bits.view(DTYPES[source])
    (out,) = compiled(["a.to(out_ptr.dtype.element_ty, bitcast=True)"], DTYPES[target], x)
    is_number = torch.ones(256, dtype=torch.bool)
    if size == 2:  # NaN may lose its payload
        is_number = ~torch.isnan((out if out.is_floating_point() else x).float())
    assert torch.equal(out.view(torch.uint8).view(256, size)[is_number], bits.view(256, size)[is_number])


def test_truth_values():
    """As numbers: loaded, compared, added."""
    a, b = torch.arange(32) % 2 == 1, torch.arange(32) % 3 == 1
    expressions = ("a & b", "a | b", "a ^ b", "~a", "tl.where(a, 5, 6)", "a.to(tl.float32).to(tl.int32)")
    expected = [x.int() for x in evaluated(expressions[:5], IN_TORCH, a, b)]
    same_bits(compiled(expressions, torch.int32, a, b), torch.stack([*expected, a.int()]))


def test_constants():
    out, long, half = torch.zeros(7), torch.zeros(19, dtype=torch.int64), torch.zeros(1, dtype=torch.float16)
    narrow = torch.zeros(4, dtype=torch.bfloat16)
    run(kernels.constants, out, long, half, narrow)
    same_bits(out, torch.tensor([INF, -INF, NAN, 1e30, 1.17549435e-38, -1.5, -1.5]))
    assert long.tolist() == [-(2**63), 2**63 - 1, -(2**31), *(i * i for i in range(16, 32))]
    assert narrow.tolist() == [-INF, -INF, 1.5, 1.5]
    assert half.item() == torch.tensor(0.1).half().item()


def test_program_ids_run_over_the_grid_x_first():
    out = torch.full((24,), -1, dtype=torch.int32)
    run(programs.number, out, grid=(2, 3, 4), programs_per_call=5)
    assert out.tolist() == list(range(24))


def test_what_is_not_supported_is_refused_with_its_line_and_advice():
    with pytest.raises(NotSupportedError, match=r"inline PTX.*small_kernels.py, line.*plain variant") as raised:
        generate(ttir_of(kernels.inline_ptx, ("*i32",)))
    assert raised.value.operation.startswith("inline PTX")
    assert raised.value.line > 0
    huge = kernels.of_a_tile(512, 2048, ("tl.cumsum(x, axis=1)", (512, 2048)))
    for kernel, types, message in (
        (huge, ("*fp32",) * 2, r"of_a_tile, whose tiles have 8192 KiB in one program.*smaller tiles: 4096 KiB"),
        (kernels.histogram, ("*i32",) * 2, r"tt.histogram cannot be compiled.*tl.sum"),
        (kernels.prints, ("*i32",), r"tt.print cannot be compiled.*TRITON_INTERPRET=1"),
    ):
        with pytest.raises(NotSupportedError, match=message):
            generate(ttir_of(kernel, types))
