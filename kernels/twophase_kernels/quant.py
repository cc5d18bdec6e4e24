"""Quantised K and V: int8, or fp8 e4m3 bits held in uint8, with one fp32 scale per token and head.

    scale = absmax(row) / q_max        data = encode(row * (q_max / absmax))        row ~ data * scale

q_max is 127 for int8 (symmetric: -128 is never written) and 448 for e4m3, its largest finite value.

The e4m3 codec is integer arithmetic on fp32 bits. It is the same in the compiler and in the interpreter (whose own fp8
rounding is wrong for 2.6 % of samples, by up to 2x), and it brings fp8 caches to GPUs without fp8 hardware. The
format is 'fn' of OCP 8-bit floating point, arXiv:2209.05433: bias 7, no infinities, 0x7F and 0xFF are NaN.

    seeeemmm   0x38 = 0 0111 000 -> 2^(7-7) * 1.000b = 1.0        0x7E = 0 1111 110 -> 2^8 * 1.75 = 448
               0x01 = 0 0000 001 -> 2^-6 * 0.001b    = 2^-9      (exponent field 0: subnormal, steps of 2^-9)

A row that holds a NaN or an infinity reads back as NaN throughout: loud, as it would be unquantised.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from twophase_kernels._triton import tl, triton
from twophase_kernels.arguments import FLOATS

KVFormat = Literal["none", "int8", "fp8_e4m3"]
CACHE_DTYPES = (*FLOATS, torch.int8, torch.uint8)

INT8_MAX = tl.constexpr(127.0)
E4M3_MAX = tl.constexpr(448.0)
# Rows smaller than this are scaled as if they were this large: keeps q_max / absmax finite, and zeros safe.
MIN_ABSMAX = 1e-30
MIN_ABSMAX_BITS = tl.constexpr(0x0DA24260)

MAGNITUDE_MASK = tl.constexpr(0x7FFFFFFF)
INFINITY_BITS = tl.constexpr(0x7F800000)
E4M3_MAX_BITS = tl.constexpr(0x43E00000)  # of 448.0
E4M3_MIN_NORMAL_BITS = tl.constexpr(0x3C800000)  # of 2^-6
# fp32 has 20 more mantissa bits than e4m3, and its exponent bias is larger by 120.
E4M3_SHIFT = tl.constexpr(20)
E4M3_REBIAS = tl.constexpr(120 << 3)
TWO_TO_120 = tl.constexpr(2.0**120)
# Adding 2^14, whose last fp32 bit is worth 2^-9, rounds to a multiple of 2^-9: the spacing of e4m3 subnormals.
SUBNORMAL_ROUNDER = tl.constexpr(16384.0)
SUBNORMAL_ROUNDER_BITS = tl.constexpr(0x46800000)
# Likewise 1.5 * 2^23, whose last bit is worth 1; the half keeps the sum's exponent for either sign.
INTEGER_ROUNDER = tl.constexpr(12582912.0)
INTEGER_ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def decode_e4m3(codes):
    """uint8 e4m3 bits, any shape -> fp32, exact for all 256 codes.

    The seven magnitude bits are placed at the top of fp32's exponent and mantissa: a number too small by 2^120, the
    difference of the biases. That holds for subnormals too, as long as the multiply does not flush fp32 subnormals
    to zero; Triton's does not on NVIDIA or AMD.
    """
    bits = codes.to(tl.int32)
    magnitude = bits & 0x7F
    value = ((magnitude << E4M3_SHIFT) | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True) * TWO_TO_120
    return tl.where(magnitude == 0x7F, float("nan"), value)


@triton.jit
def encode_e4m3(values):
    """fp32, any shape -> uint8 e4m3 bits: round to nearest even, saturate at +-448, NaN stays NaN."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE_MASK
    clamped = tl.minimum(magnitude, E4M3_MAX_BITS)
    # Nearest even: add just under half of the last kept bit, and the rest if that bit is odd; a carry may walk
    # into the exponent, which is right.
    odd = (clamped >> E4M3_SHIFT) & 1
    normal = ((clamped + 0x7FFFF + odd) >> E4M3_SHIFT) - E4M3_REBIAS
    rounded = clamped.to(tl.float32, bitcast=True) + SUBNORMAL_ROUNDER
    subnormal = rounded.to(tl.int32, bitcast=True) - SUBNORMAL_ROUNDER_BITS
    code = tl.where(clamped < E4M3_MIN_NORMAL_BITS, subnormal, normal)
    code = tl.where(magnitude > INFINITY_BITS, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def encode_int8(values):
    """fp32, any shape -> int8: round to nearest even, clamp to +-127. (A cast would truncate.)"""
    clamped = tl.minimum(tl.maximum(values, -INT8_MAX), INT8_MAX)
    # Read the integer out of the bits, so that no compiler can simplify (x + c) - c.
    return ((clamped + INTEGER_ROUNDER).to(tl.int32, bitcast=True) - INTEGER_ROUNDER_BITS).to(tl.int8)


@triton.jit
def absmax_bits(rows):
    """fp32 [R, D] -> the bits of each row's largest magnitude, int32 [R].

    Taken on the bits as integers: the order is that of the magnitudes, and a NaN wins.
    """
    return tl.max(rows.to(tl.int32, bitcast=True) & MAGNITUDE_MASK, axis=1)


@triton.jit
def row_scales(row_absmax_bits, KV_FORMAT: tl.constexpr):
    """int32 [R] from `absmax_bits` -> (scale, factor before encoding), both fp32 [R]."""
    Q_MAX: tl.constexpr = INT8_MAX if KV_FORMAT == "int8" else E4M3_MAX
    absmax = tl.maximum(row_absmax_bits, MIN_ABSMAX_BITS).to(tl.float32, bitcast=True)
    # div_rn: plain division may be off by 2 ulp on a GPU, and codes would differ from the reference's.
    return tl.div_rn(absmax, Q_MAX), tl.div_rn(Q_MAX, absmax)


@triton.jit
def encode(values, KV_FORMAT: tl.constexpr):
    """fp32 multiplied by its row's factor -> int8, or uint8 with e4m3 bits."""
    if KV_FORMAT == "int8":
        return encode_int8(values)
    else:  # noqa: RET505  (Triton drops the branch not taken; what follows an early return it compiles)
        return encode_e4m3(values)


@triton.jit
def decode(data, KV_FORMAT: tl.constexpr):
    """Cache data as loaded -> numbers still to be multiplied by their scale; fp32, or unchanged for 'none'."""
    if KV_FORMAT == "int8":
        return data.to(tl.float32)
    elif KV_FORMAT == "fp8_e4m3":  # noqa: RET505
        return decode_e4m3(data)
    else:
        return data


def cache_dtype(kv_format: KVFormat, model_dtype: torch.dtype) -> torch.dtype:
    """The dtype of k_cache and v_cache."""
    return {"none": model_dtype, "int8": torch.int8, "fp8_e4m3": torch.uint8}[kv_format]


def kv_format_of(cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> KVFormat:
    """The format of a cache, K's or V's: int8 and uint8 (e4m3 bits) come with scales, floats without.

    Raises:
        ValueError: Scales are missing or superfluous.
    """
    kv_format: KVFormat = {torch.int8: "int8", torch.uint8: "fp8_e4m3"}.get(cache.dtype, "none")
    if {k_scale is None, v_scale is None} != {kv_format == "none"}:
        raise ValueError(
            f"int8 and uint8 (fp8 e4m3) caches need k_scale and v_scale, fp32 [N, H_kv, page], and others take none; "
            f"got {cache.dtype}, k_scale {'missing' if k_scale is None else 'given'}, v_scale "
            f"{'missing' if v_scale is None else 'given'}."
        )
    return kv_format


def quantise_reference(x: Tensor, kv_format: KVFormat) -> tuple[Tensor, Tensor | None]:
    """x [..., D] -> (data [..., D], scale fp32 [...]) in plain torch; ('none': x itself and None)."""
    if kv_format == "none":
        return x, None
    rows = x.float()
    absmax = rows.abs().amax(-1).clamp(min=MIN_ABSMAX)
    # As a tensor: by a Python number torch divides inexactly, `448.0 / absmax` as 448 times a rounded reciprocal, and
    # on a GPU `absmax / 448.0` likewise: one ulp off in many a row.
    q_max = torch.full_like(absmax, 127.0 if kv_format == "int8" else 448.0)
    scaled = rows * (q_max / absmax)[..., None]
    if kv_format == "int8":
        return torch.round(scaled).clamp(-127, 127).to(torch.int8), absmax / q_max
    # clamp: the last product can round to just above 448, and older torch turns larger values into NaN.
    data = scaled.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    return data, absmax / q_max


def dequantise_reference(data: Tensor, scale: Tensor | None, kv_format: KVFormat, dtype: torch.dtype) -> Tensor:
    """data [..., D], scale [...] -> [..., D] of `dtype`; the product is taken in fp32."""
    if kv_format == "none":
        return data.to(dtype)
    if kv_format not in get_args(KVFormat):
        raise ValueError(f"kv_format must be one of {get_args(KVFormat)}, got {kv_format!r}.")
    assert scale is not None
    codes = data.view(torch.float8_e4m3fn) if kv_format == "fp8_e4m3" else data
    return (codes.float() * scale[..., None]).to(dtype)
