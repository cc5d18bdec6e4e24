"""Elementwise operations, compiled: against torch and numpy, in every type, over edge cases."""

import numpy as np
import pytest
import torch

from tests.kernels.cpu.harness import all_ttir, run
from triton_on_cpu.generate import generate
from triton_on_cpu.ttir import NotSupportedError

DTYPES = {
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u32": torch.uint32,
    "u64": torch.uint64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
}  # fmt: skip
INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 1.5, -2.75, 3e-8, 1e-40, 65504.0, -1e30, 3e38, INF, -INF, NAN, 0.1, 1e-3]


def pairs_of_integers(kind, n=32):
    """Two rows: small and large numbers, both limits, and their neighbours."""
    numpy_kind = np.dtype(kind.replace("i", "int").replace("u", "uint").replace("uintnt", "uint"))
    info = np.iinfo(numpy_kind)
    rng = np.random.default_rng(0)
    special = [info.min, info.max, 0, 1, 7, 8, info.max - 1, info.min + 1, 3, 2]
    a = np.concatenate(
        [np.array(special, dtype=numpy_kind), rng.integers(info.min, info.max, n - 10, numpy_kind, endpoint=True)]
    )
    b = np.roll(a, 3)
    b[b == 0] = 1
    return a.astype(numpy_kind), b.astype(numpy_kind)


def as_tensor(array):
    signed = {"uint32": np.int32, "uint64": np.int64}.get(array.dtype.name)
    return torch.from_numpy(array.copy() if signed is None else array.view(signed).copy())


def outputs(name, rows, dtype, *inputs, fill=0):
    """The rows that a program writes."""
    n = inputs[0].numel()
    out = (
        torch.full((rows, n), fill, dtype=torch.float32).to(dtype)
        if dtype.itemsize == 1 and dtype.is_floating_point
        else torch.zeros(rows, n, dtype=dtype)
    )
    assert run(name, *inputs, out) is None
    return out


def same_bits(actual, expected):
    """Equal, also in the sign of zeros; NaN equals NaN."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if actual.dtype.is_floating_point:
        numbers = ~torch.isnan(expected.float())
        assert torch.equal(torch.signbit(actual.float())[numbers], torch.signbit(expected.float())[numbers])


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64"])
def test_integers_wrap_around(kind):
    a, b = pairs_of_integers(kind)
    with np.errstate(over="ignore"):
        expected = [
            a + b,
            a - b,
            a * b,
            a & b,
            a | b,
            a ^ b,
            np.minimum(a, b),
            np.maximum(a, b),
            (0 - a).astype(a.dtype),
            ~a,
        ]
    found = outputs(f"integers[{kind}]", 10, DTYPES[kind], as_tensor(a), as_tensor(b))
    same_bits(found, torch.from_numpy(np.stack(expected)))


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64", "u8", "u32", "u64"])
def test_division_truncates(kind):
    a, b = pairs_of_integers(kind)
    big_a, big_b = [int(x) for x in a], [int(x) for x in b]

    def quotients(divisors):
        return [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(big_a, divisors, strict=True)]

    q = quotients(big_b)
    rows = [q, [x - y * z for x, y, z in zip(big_a, big_b, q, strict=True)], quotients([7] * len(a))]
    rows.append([x - 8 * y for x, y in zip(big_a, quotients([8] * len(a)), strict=True)])
    bits = 8 * a.dtype.itemsize
    wrapped = [[(x + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for x in row] for row in rows]
    signed = np.dtype(f"int{bits}")
    found = outputs(
        f"division[{kind}]", 4, DTYPES[f"i{bits}"] if kind != "u8" else torch.uint8, as_tensor(a), as_tensor(b)
    )
    assert found.numpy().view(signed).tolist() == wrapped


@pytest.mark.parametrize("kind", ["i32", "u32", "i64", "u8"])
def test_division_by_zero_does_not_trap(kind):
    a, _ = pairs_of_integers(kind)
    zeros = as_tensor(np.zeros_like(a))
    found = outputs(f"division[{kind}]", 4, as_tensor(a).dtype, as_tensor(a), zeros)
    same_bits(
        found[3].to(torch.int64),
        torch.fmod(as_tensor(a).to(torch.int64), 8) if kind[0] == "i" else as_tensor(a).to(torch.int64) & 7,
    )


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64", "u32"])
def test_shifts_by_any_number(kind):
    """As on a GPU: by as many bits as there are or more, only the sign is left."""
    a, _ = pairs_of_integers(kind)
    bits = 8 * a.dtype.itemsize
    by = (np.arange(32) * 3 % (bits + 3)).astype(a.dtype)

    def row(shift):
        values = [shift(int(x), int(n)) for x, n in zip(a, by, strict=True)]
        return [(x + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for x in values]

    expected = [row(lambda x, n: x << n), row(lambda x, n: x >> n), row(lambda x, n: x << 3), row(lambda x, n: x >> 3)]
    found = outputs(f"shifts[{kind}]", 4, DTYPES[kind.replace("u", "i")], as_tensor(a), as_tensor(by))
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", ["i32", "u32", "i8", "f32", "bf16"])
def test_comparisons(kind):
    if kind in ("f32", "bf16"):
        a = torch.tensor(FLOATS * 2).to(DTYPES[kind])
        b = torch.cat([torch.tensor(FLOATS).roll(1), torch.tensor(FLOATS)]).to(DTYPES[kind])
    else:
        a, b = (torch.from_numpy(x.astype(np.int64)) for x in pairs_of_integers(kind))
        b[:4] = a[:4]
    expected = torch.stack([a < b, a <= b, a > b, a >= b, a == b, a != b]).to(torch.int8)
    same_bits(outputs(f"comparisons[{kind}]", 6, torch.int8, *(as_given(x, kind) for x in (a, b))), expected)


def as_given(x, kind):
    """int64 numbers in the bits of a narrower type."""
    narrow = {"i32": torch.int32, "u32": torch.int32, "i8": torch.int8}
    return x.to(narrow[kind]) if kind in narrow else x


def pairs_of_floats(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.cat([torch.tensor(FLOATS * 2), torch.randn(32, generator=generator) * 3])
    b = torch.cat([torch.tensor(FLOATS).roll(5), torch.tensor(FLOATS), torch.randn(32, generator=generator)])
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_floats_are_rounded_once(kind):
    a, b = pairs_of_floats(DTYPES[kind])
    found = outputs(f"floats[{kind}]", 12, DTYPES[kind], a, b)
    wide = [x.double() for x in (a, b)]

    def rounded(x):
        return x.to(DTYPES[kind])

    expected = [
        rounded(wide[0] + wide[1]),
        rounded(wide[0] - wide[1]),
        rounded(wide[0] * wide[1]),
        rounded(wide[0] / wide[1]),
    ]
    expected += [torch.fmin(a, b), torch.fmax(a, b), torch.minimum(a, b), torch.maximum(a, b)]
    expected += [0 - a, a.abs(), torch.where(a < b, a, b)]  # (Triton's own -x is 0 - x)
    for i, row in enumerate(expected):
        if i in (4, 5, 6, 7):  # of two zeros either will do
            torch.testing.assert_close(found[i], row, rtol=0, atol=0, equal_nan=True, msg=f"row {i}")
        else:
            same_bits(found[i], row)
    numbers = ~torch.isnan(a)
    same_bits(found[11][numbers], a.clamp(-1.0, 1.0)[numbers])


REFERENCES = [
    torch.exp, torch.exp2, torch.log, torch.log2, torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.floor, torch.ceil,
    torch.sigmoid, torch.erf, lambda x: x * x + x, lambda x: x / (x + 1), torch.sqrt,
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rtol"), [("f32", 4e-7), ("f64", 1e-13)])
def test_functions(kind, rtol):
    """Within 3 units of the last place or so, subnormal results too; special values exactly."""
    special = torch.tensor(
        [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 88.7, 89.5, -87.5, -100.0, -104.5, 127.9, 128.1, -130.0, -149.0, -151.0]
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [special, torch.tensor([1e-40, 1.4e-45, 3e38, 0.999999, 1.000001]), torch.randn(106, generator=generator) * 8]
    )
    x = x.to(DTYPES[kind])
    found = outputs(f"functions[{kind}]", 15, DTYPES[kind], x)
    for i, reference in enumerate(REFERENCES[: 15 if kind == "f32" else 13]):
        expected = reference(x.double()).to(x.dtype)
        smallest = 1e-44 if kind == "f32" else 0
        atol = {6: 1e-6, 7: 1e-6, 10: 1e-43, 12: 2e-6, 13: 1e-6}.get(i, smallest) if kind == "f32" else 1e-14
        torch.testing.assert_close(
            found[i],
            expected,
            rtol=rtol * (3 if i == 12 else 1),
            atol=atol,
            equal_nan=True,
            msg=lambda m, i=i: f"row {i}: {m}",
        )


def every_byte():
    return torch.arange(256, dtype=torch.uint8)


def conversion_inputs(source, target):
    dtype = DTYPES[source]
    if source in ("e4m3", "i8", "u8"):
        return every_byte().view(dtype)
    generator = torch.Generator().manual_seed(1)
    if not dtype.is_floating_point:
        a, _ = pairs_of_integers(source, 256)
        return as_tensor(a)
    x = torch.cat(
        [
            torch.tensor(FLOATS * 2),
            torch.randn(96, generator=generator),
            torch.randn(128, generator=generator).double().exp().float() ** 3,
        ]
    )
    if target in ("e4m3", "f16", "bf16"):  # halves between two numbers, and their neighbours
        grid = torch.arange(-20, 21).float() * 2.0**-10
        x[:82] = torch.cat([grid, grid.nextafter(torch.tensor(INF))])
        x[82:114] = torch.linspace(1.0, 3.0, 32)
        x[114:120] = torch.tensor([2049.0, 2051.0, 65519.0, 65520.0, -70000.0, 1e-7])
        x[120:124] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -5.5e-5, 2.5 * 2.0**-16])
        x[124:126] = torch.tensor([0x7FFFFFFF, 0x7F800001], dtype=torch.int32).view(torch.float32)
    if target.startswith("u"):
        x = x.abs()
    return x.to(dtype)


def converted(x, target):
    """torch's conversion; saturating to fp8, and from floats to integers, as a GPU has it."""
    dtype = DTYPES[target]
    if target == "e4m3":
        largest = torch.finfo(dtype).max
        return x.float().clamp(-largest, largest).to(dtype)
    if x.dtype.is_floating_point and not dtype.is_floating_point:
        info = torch.iinfo(torch.int64 if target == "i64" else torch.uint32 if target == "u32" else torch.int32)
        whole = [
            0
            if v != v
            else max(info.min, min(info.max, int(v) if abs(v) != INF else (info.max if v > 0 else info.min)))
            for v in x.tolist()
        ]
        wide = torch.tensor(whole, dtype=torch.int64)
        return wide.to(torch.int32 if target == "u32" else dtype)
    return x.to(dtype)


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for name in all_ttir() if name.startswith("convert") for s, t in [name[8:-1].split()]]
)
def test_conversions(source, target):
    x = conversion_inputs(source, target)
    dtype = {"u32": torch.int32}.get(target, DTYPES[target])
    out = torch.zeros(256, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.zeros(256, dtype=dtype)
    assert run(f"convert[{source} {target}]", x, out) is None
    if source == "u32":
        x = x.to(torch.int64) & 0xFFFFFFFF
    expected = converted(x, target)
    if target == "e4m3":
        same_bits(out.float(), expected.float())
    else:
        same_bits(out, expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [(s, t) for name in all_ttir() if name.startswith("reinterpret") for s, t in [name[12:-1].split()]],
)
def test_bits_keep_their_meaning(source, target):
    size = DTYPES[source].itemsize
    bits = torch.randint(0, 256, (256 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    bits[: 2 * size] = torch.tensor([0] * (size - 1) + [0x80] + [1] + [0] * (size - 1), dtype=torch.uint8)
    x = bits.view(DTYPES[source])
    out = torch.zeros(256 * size, dtype=torch.uint8).view(DTYPES[target])
    assert run(f"reinterpret[{source} {target}]", x, out) is None
    narrow = {2: torch.int16}.get(size)
    is_number = torch.ones(256, dtype=torch.bool)
    if narrow:  # NaN may lose its payload
        is_number = ~torch.isnan(out.float()) if DTYPES[target].is_floating_point else ~torch.isnan(x.float())
    assert torch.equal(out.view(torch.uint8).view(256, size)[is_number], bits.view(256, size)[is_number])


def test_constants():
    out, long, half = torch.zeros(7), torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.float16)
    run("constants", out, long, half)
    same_bits(out, torch.tensor([INF, -INF, NAN, 1e30, 1.17549435e-38, -1.5, -1.5]))
    assert long.tolist() == [-(2**63), 2**63 - 1, -(2**31)]
    assert half.item() == torch.tensor(0.1).half().item()


def test_ranges():
    out = torch.zeros(16, dtype=torch.int32)
    run("ranges", out)
    assert out.tolist() == [i * i for i in range(16, 32)]


def test_bf16_constants():
    out = torch.zeros(4, dtype=torch.bfloat16)
    run("narrow_constants", out)
    assert out.tolist() == [-INF, -INF, 1.5, 1.5]


def test_scalar_arguments():
    out = torch.zeros(7, dtype=torch.int64)
    run("scalars", out, -5, -300, 2**31 - 7, -(2**40), 1.5, True)
    assert out.tolist() == [-5, -300, 2**31 - 7, -(2**40), 3, 1, (2**31 - 7 + 6) // 7]


def test_program_ids_run_over_the_grid_x_first():
    out = torch.full((24,), -1, dtype=torch.int32)
    run("grid_ids", out, grid=(2, 3, 4), programs_per_call=5)
    assert out.tolist() == [x + 10 * y + 100 * z + 4000 for z in range(4) for y in range(3) for x in range(2)]


def test_truth_values():
    a, b = torch.arange(32) % 2 == 1, torch.arange(32) % 3 == 1
    expected = torch.stack([a & b, a | b, a ^ b, ~a, torch.where(a, 5, 6), a]).to(torch.int32)
    same_bits(outputs("truth", 6, torch.int32, a, b), expected)


def test_what_is_not_supported_is_refused_with_its_line_and_advice():
    with pytest.raises(NotSupportedError, match=r"inline PTX.*small_kernels.py, line.*plain variant") as raised:
        generate(all_ttir()["inline_ptx"])
    assert raised.value.operation.startswith("inline PTX")
    assert raised.value.line > 0
    with pytest.raises(
        NotSupportedError, match=r"scans, whose tiles have 20480 KiB in one program.*smaller tiles: 4096 KiB"
    ):
        generate(all_ttir()["huge"])
    with pytest.raises(NotSupportedError, match=r"tt.histogram cannot be compiled.*tl.sum"):
        generate(all_ttir()["histogram"])
    with pytest.raises(NotSupportedError, match=r"tt.print cannot be compiled.*TRITON_INTERPRET=1"):
        generate(all_ttir()["prints"])
