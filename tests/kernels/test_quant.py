"""The e4m3 and int8 codecs against torch's own float8_e4m3fn and round, bit by bit."""

import functools

import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.planting import noticing
from twophase_kernels import quant
from twophase_kernels._triton import tl, triton

pytest.importorskip("triton", reason="not run here: no triton")


@triton.jit
def _apply(x_ptr, out_ptr, function: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, function(tl.load(x_ptr + offs)))


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
    data = torch.empty(x.shape, dtype=quant.cache_dtype(kv_format, torch.float32), device=HERE)
    scale = torch.full((len(x),), float("nan"), device=HERE)
    functions = module.absmax_bits, module.row_scales, module.encode
    _quantise[(1,)](x.to(HERE), data, scale, *functions, KV_FORMAT=kv_format, ROWS=len(x), BLOCK=x.shape[1])
    return data.cpu(), scale.cpu()


def run_codec(function, x, dtype, block=1024):
    pad = -x.numel() % block
    padded = torch.cat([x, x.new_zeros(pad)]).to(HERE)
    out = torch.empty(padded.shape, dtype=dtype, device=HERE)
    _apply[(len(padded) // block,)](padded, out, function, BLOCK=block)
    return out[: len(x)].cpu()


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
    got = run_codec(module.decode_e4m3, codes, torch.float32, block=256)
    torch.testing.assert_close(got, codes.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[:127], torch.zeros(127, dtype=torch.bool))
    assert got.signbit()[128:255].all(), "-0 and the negative numbers keep their sign"


def check_encode(module):
    x = values_to_encode()
    got, want = run_codec(module.encode_e4m3, x, torch.uint8, block=65536), e4m3_oracle(x)
    wrong = (got != want).nonzero().flatten()
    assert not len(wrong), f"{len(wrong)} wrong; x={x[wrong[0]]!r} gives {got[wrong[0]]:#x}, not {want[wrong[0]]:#x}"


def check_encode_int8(module):
    x = torch.cat([torch.arange(-140, 140, 0.25), torch.tensor([1e9, -1e9, 0.49999997, 126.50001, 127.5])])
    got = run_codec(module.encode_int8, x, torch.int8)
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


def check_ties(reference, kv_format):
    """The reference's factor is q_max / absmax correctly rounded, as the kernel's `div_rn` is; ties show every ulp.

    Each row has its largest element, and others that the factor takes to a tie or near it.
    """
    q_max, absmax = {"int8": 127.0, "fp8_e4m3": 448.0}[kv_format], 1 + torch.arange(4096) / 4096 * 0.999
    x = torch.cat([absmax[:, None], ((torch.arange(15) + 0.5) * (absmax / q_max)[:, None]).float()], dim=1)
    scaled = x * (q_max / x.abs().amax(1).double()).float()[:, None]
    want = scaled.round().to(torch.int8) if kv_format == "int8" else e4m3_oracle(scaled)
    data, _ = reference.quantise_reference(x, kv_format)
    assert torch.equal(data, want), f"{(data != want).sum()} of {data.numel()} codes differ"


CHECKS = {check.__name__: check for check in (check_decode, check_encode, check_encode_int8)} | {
    f"{check.__name__}_{kv_format}": functools.partial(check, kv_format=kv_format)
    for check in (check_quantise, check_ties)
    for kv_format in ("int8", "fp8_e4m3")
}


@pytest.mark.parametrize("name", CHECKS)
def test_codecs(name):
    CHECKS[name](quant)


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


MUTANTS = {("quant",): [
    ("nan code decoded as 480", "(magnitude == 0x7F, float", "(magnitude == 0xFF, float", check_decode),
    ("ties go up", "0x7FFFF + odd", "0x80000", check_encode),
    ("no saturation", "tl.minimum(magnitude, E4M3_MAX_BITS)", "magnitude", check_encode),
    ("int8 reaches -128", "tl.maximum(values, -INT8_MAX)", "tl.maximum(values, -128.0)", check_encode_int8),
    ("signed maximum", "bitcast=True) & MAGNITUDE_MASK, axis=1)", "bitcast=True), axis=1)", CHECKS["check_quantise_int8"]),
    ("the reference multiplies by a reciprocal", "(q_max / absmax)[..., None]", "(q_max * (1 / absmax))[..., None]", CHECKS["check_ties_int8"]),
    ("e4m3 scaled as int8", 'if KV_FORMAT == "int8" else E4M3_MAX', "", CHECKS["check_quantise_fp8_e4m3"]),
]}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
