"""The e4m3 and int8 codecs against torch's own float8_e4m3fn and round, bit by bit."""

import functools

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase_kernels import quant
from twophase_kernels._triton import tl, triton

pytest.importorskip("triton", reason="not run here: no triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N = 1024


@triton.jit
def _decode(codes_ptr, out_ptr, decode: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, decode(tl.load(codes_ptr + offs)))


@triton.jit
def _encode(values_ptr, out_ptr, encode: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, encode(tl.load(values_ptr + offs)))


@triton.jit
def _quantise(
    x_ptr,
    data_ptr,
    scale_ptr,
    absmax_bits: tl.constexpr,
    row_scales: tl.constexpr,
    encode: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offs_row = tl.arange(0, ROWS)
    offs = offs_row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    rows = tl.load(x_ptr + offs)
    scale, factor = row_scales(absmax_bits(rows), KV_FORMAT)
    tl.store(data_ptr + offs, encode(rows * factor[:, None], KV_FORMAT))
    tl.store(scale_ptr + offs_row, scale)


def run_quantise(module, x, kv_format):
    data = torch.empty(x.shape, dtype=quant.cache_dtype(kv_format, torch.float32), device=DEVICE)
    scale = torch.full((len(x),), float("nan"), device=DEVICE)
    functions = module.absmax_bits, module.row_scales, module.encode
    _quantise[(1,)](x.to(DEVICE), data, scale, *functions, KV_FORMAT=kv_format, ROWS=len(x), BLOCK=x.shape[1])
    return data.cpu(), scale.cpu()


def run_codec(kernel, function, x, dtype, block=N):
    x = x.to(DEVICE)
    pad = -x.numel() % block
    x = torch.cat([x, x.new_zeros(pad)])
    out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    kernel[(x.numel() // block,)](x, out, function, BLOCK=block)
    return out[: out.numel() - pad].cpu()


def fp32_of_bits(bits):
    return bits.to(torch.int32).view(torch.float32)


@functools.cache
def values_to_encode():
    """Every e4m3 value, every tie and its fp32 neighbours, subnormals, saturation, NaN, and a dense walk over bits."""
    finite = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (finite[1:] + finite[:-1]) / 2
    edges = torch.cat([finite, ties, torch.tensor([448.0, 464.0, 480.0, 2.0**-10, 2.0**-6, 1e-38, 1e-45, 3e38])])
    bits = edges.view(torch.int32)
    near = fp32_of_bits(torch.cat([bits - 1, bits, bits + 1]).clamp(min=0))
    # Steps of a prime, so that all mantissa bits vary; from 2^-12 to 2^10.
    walk = fp32_of_bits(torch.arange(115 << 23, 137 << 23, 9973))
    positive = torch.cat([near, walk, torch.tensor([float("inf"), float("nan")])])
    return torch.cat([positive, -positive])


def e4m3_oracle(x):
    """torch's conversion, made to saturate (old torch gives NaN above 464)."""
    codes = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(x.isnan(), x.signbit().to(torch.uint8) * 0x80 + 0x7F, codes)


def check_decode(module):
    codes = torch.arange(256, dtype=torch.uint8)
    got = run_codec(_decode, module.decode_e4m3, codes, torch.float32, block=256)
    torch.testing.assert_close(got, codes.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[:127], torch.zeros(127, dtype=torch.bool))
    assert got.signbit()[128:255].all(), "-0 and the negative numbers keep their sign"


def check_encode(module):
    x = values_to_encode()
    got, want = run_codec(_encode, module.encode_e4m3, x, torch.uint8, block=65536), e4m3_oracle(x)
    wrong = (got != want).nonzero().flatten()
    assert not len(wrong), f"{len(wrong)} wrong; x={x[wrong[0]]!r} gives {got[wrong[0]]:#x}, not {want[wrong[0]]:#x}"


def check_encode_int8(module):
    x = torch.cat([torch.arange(-140, 140, 0.25), torch.tensor([1e9, -1e9, 0.49999997, 126.50001, 127.5])])
    got = run_codec(_encode, module.encode_int8, x, torch.int8)
    want = torch.round(x.double()).clamp(-127, 127).to(torch.int8)
    assert torch.equal(got, want), x[(got != want)]


def rows_to_quantise():
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, 32)[:, None]
    x[3] = 0  # an all-zero row must be safe
    x[4] = 1e-42  # and a subnormal one
    x[5] = -0.0
    x[6, 1:] = 0  # the largest element is all there is
    return x


def check_quantise(module, kv_format):
    x = rows_to_quantise()
    data, scale = run_quantise(module, x, kv_format)
    want_data, want_scale = quant.quantise_reference(x, kv_format)
    torch.testing.assert_close(scale, want_scale, rtol=0, atol=0)
    torch.testing.assert_close(data, want_data, rtol=0, atol=0)


@pytest.mark.parametrize("check", [check_decode, check_encode, check_encode_int8], ids=lambda check: check.__name__)
def test_every_code_and_number(check):
    check(quant)


@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
def test_quantise_rows(kv_format):
    check_quantise(quant, kv_format)


def rows_with_ties(q_max):
    """fp32 [4096, 16]: each row's largest element, and others that its factor q_max / absmax takes to a tie or near it."""
    absmax = 1 + torch.arange(4096) / 4096 * 0.999
    halves = torch.arange(15) + 0.5
    return torch.cat([absmax[:, None], (halves * (absmax / q_max)[:, None]).float()], dim=1)


def check_ties(reference, q_max, kv_format):
    """The reference's factor is q_max / absmax correctly rounded, as the kernel's `div_rn` is; ties show every ulp."""
    x = rows_with_ties(q_max)
    scaled = x * (q_max / x.abs().amax(1).double()).float()[:, None]
    want = scaled.round().to(torch.int8) if kv_format == "int8" else e4m3_oracle(scaled)
    data, _ = reference.quantise_reference(x, kv_format)
    assert torch.equal(data, want), f"{(data != want).sum()} of {data.numel()} codes differ"


@pytest.mark.parametrize(("q_max", "kv_format"), [(127.0, "int8"), (448.0, "fp8_e4m3")])
def test_the_reference_divides_as_exactly_as_the_kernel(q_max, kv_format):
    check_ties(quant, q_max, kv_format)


@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_nan_or_infinity_reads_back_as_nan(kv_format, bad):
    x = torch.ones(2, 64)
    x[0, 5] = bad
    back = quant.dequantise_reference(*run_quantise(quant, x, kv_format), kv_format, torch.float32)
    assert not back[0].isfinite().any()
    torch.testing.assert_close(back[1], x[1])
    want = quant.dequantise_reference(*quant.quantise_reference(x, kv_format), kv_format, torch.float32)
    assert not want[0].isfinite().any()


def test_none_passes_through():
    x = torch.randn(3, 8)
    data, scale = quant.quantise_reference(x, "none")
    assert data is x
    assert scale is None
    assert torch.equal(quant.dequantise_reference(x, None, "none", torch.float32), x)
    with pytest.raises(ValueError, match="kv_format must be one of"):
        quant.dequantise_reference(x, None, "fp4", torch.float32)


def test_kv_format_of():
    shape = (3, 2, 16, 64)
    scale = torch.empty(shape[:3])
    for dtype, kv_format in [(torch.float16, "none"), (torch.int8, "int8"), (torch.uint8, "fp8_e4m3")]:
        cache = torch.empty(shape, dtype=dtype)
        scales = (None, None) if kv_format == "none" else (scale, scale)
        assert quant.kv_format_of(cache, *scales) == kv_format
        wrong = (scale, scale) if kv_format == "none" else (scale, None)
        with pytest.raises(ValueError, match=f"got {dtype}, k_scale given, v_scale"):
            quant.kv_format_of(cache, *wrong)


check_quantise_int8 = functools.partial(check_quantise, kv_format="int8")
check_quantise_e4m3 = functools.partial(check_quantise, kv_format="fp8_e4m3")
ROUND_INT8 = "(clamped + INTEGER_ROUNDER).to(tl.int32, bitcast=True) - INTEGER_ROUNDER_BITS"
MUTANTS = [
    ("nan code decoded as 480", "(magnitude == 0x7F, float", "(magnitude == 0xFF, float", check_decode),
    ("decode sign lost", "| ((bits & 0x80) << 24))", ")", check_decode),
    ("ties go up", "0x7FFFF + odd", "0x80000", check_encode),
    ("truncation", "(clamped + 0x7FFFF + odd)", "clamped", check_encode),
    ("no saturation", "tl.minimum(magnitude, E4M3_MAX_BITS)", "magnitude", check_encode),
    ("subnormals as normals", "clamped < E4M3_MIN_NORMAL_BITS", "clamped < 0", check_encode),
    ("nan saturates", "magnitude > INFINITY_BITS", "magnitude > MAGNITUDE_MASK", check_encode),
    ("infinity is nan", "magnitude > INFINITY_BITS", "magnitude >= INFINITY_BITS", check_encode),
    ("int8 truncates", ROUND_INT8, "clamped.to(tl.int32)", check_encode_int8),
    ("int8 reaches -128", "tl.maximum(values, -INT8_MAX)", "tl.maximum(values, -128.0)", check_encode_int8),
    ("signed maximum", "bitcast=True) & MAGNITUDE_MASK, axis=1)", "bitcast=True), axis=1)", check_quantise_int8),
    ("no floor on absmax", "tl.maximum(row_absmax_bits, MIN_ABSMAX_BITS)", "row_absmax_bits", check_quantise_int8),
    ("int8 scale of 128", "tl.constexpr(127.0)", "tl.constexpr(128.0)", check_quantise_int8),
    ("scale and factor swapped", "return tl.div_rn(absmax, Q_MAX), tl.div_rn(Q_MAX, absmax)", "return tl.div_rn(Q_MAX, absmax), tl.div_rn(absmax, Q_MAX)", check_quantise_int8),
    ("the reference multiplies by a reciprocal", "(q_max / absmax)[..., None]", "(q_max * (1 / absmax))[..., None]", functools.partial(check_ties, q_max=127.0, kv_format="int8")),
    ("e4m3 scaled as int8", 'if KV_FORMAT == "int8" else E4M3_MAX', "", check_quantise_e4m3),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "check"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(name, old, new, check):
    KillTable.record(Mutant(name, "twophase_kernels.quant", old, new), check)
