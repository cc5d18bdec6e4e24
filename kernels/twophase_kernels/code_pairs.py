"""8-bit keys and values two at a time: how decode reads a quantised cache.

Decode's products are small and its loads are few, so converting codes one by one takes most of the loop's
instructions (counted in code for sm_90). Here a cache row of D codes is read as D/2 numbers of 16 bits, which is also
the least that the GPU's matrix loads move, and one 32-bit register holds four codes:

    register      b3 b2 b1 b0      two pairs of neighbouring columns, (b0, b1) and (b2, b3)
    even columns  fp16(b2) fp16(b0)
    odd columns   fp16(b3) fp16(b1)

Even and odd columns then stay apart: Q.K is the sum of a product over the even and one over the odd columns, and the
output's even and odd columns are two products, put in order once at the end.

Numerics. Every product is fp16 times fp16, summed in fp32.

- A code is exact in fp16: an integer up to 127, or e4m3, whose range and mantissa fp16 contains.
- An fp16 query is unchanged. A bf16 query may be too large or too small for fp16, so a program's queries are first
  multiplied by the power of two that takes the largest of them to [2^14, 2^15), and their scores by its inverse. That
  is exact for numbers down to 2^-28 of the largest; below, the error is at most 2^-39 of the largest.
- A weight is rounded to fp16 relative to the largest of its row (see `attend_range`): to 11 bits where bf16 has 8.
"""

import torch

from twophase_kernels._triton import tl, triton
from twophase_kernels.gpu import Generation
from twophase_kernels.quant import MAGNITUDE_MASK, KVFormat, decode_e4m3

# int8: 0x6400 + u is the fp16 number 1024 + u for any byte u. With u = code + 128 that is code + 1152.
INT8_PAIRS: tl.constexpr = tl.constexpr("""
{
    .reg .b32 u, low, high, magic;
    xor.b32 u, $2, 0x80808080;
    prmt.b32 low, u, 0x64646464, 0x4240;
    prmt.b32 high, u, 0x64646464, 0x4341;
    mov.b32 magic, 0x64806480;
    sub.f16x2 $0, low, magic;
    sub.f16x2 $1, high, magic;
}
""")
# From Ada on the GPU converts two e4m3 codes to fp16 at once.
E4M3_PAIRS_HARDWARE: tl.constexpr = tl.constexpr("""
{
    .reg .b32 low, high;
    .reg .b16 even, odd;
    prmt.b32 low, $2, 0, 0x4420;
    prmt.b32 high, $2, 0, 0x4431;
    cvt.u16.u32 even, low;
    cvt.u16.u32 odd, high;
    cvt.rn.f16x2.e4m3x2 $0, even;
    cvt.rn.f16x2.e4m3x2 $1, odd;
}
""")
# Before Ada: seeeemmm becomes s0eeeemmm0000000, fp16 with its exponent too small by the difference of the biases, 8;
# subnormals too, which fp16's products take unchanged. (0x7F needs no care: its row's scale is NaN already.)
E4M3_PAIRS: tl.constexpr = tl.constexpr("""
{
    .reg .b32 low, high, sign;
    shl.b32 low, $2, 7;
    and.b32 low, low, 0x3f803f80;
    shl.b32 sign, $2, 8;
    and.b32 sign, sign, 0x80008000;
    or.b32 $0, low, sign;
    shr.u32 high, $2, 1;
    and.b32 high, high, 0x3f803f80;
    and.b32 sign, $2, 0x80008000;
    or.b32 $1, high, sign;
}
""")


def pair_decoder(kv_format: KVFormat, dtype: torch.dtype, head_dim: int, generation: Generation) -> str:
    """The kernels' argument PAIRS: the way to unpack two codes at once, or 'no': codes are converted one by one.

    fp32 queries would lose digits in fp16. `tl.dot` requires 16 columns, even and odd. AMD has other instructions;
    unpacking pairs has not been tried there. A CPU has no PTX ('plain': the same steps except the
    conversion).
    """
    if kv_format == "none" or dtype == torch.float32 or head_dim < 32 or generation == "cdna":
        return "no"
    if generation == "cpu":
        return "plain"
    return "hardware" if generation in ("ada", "hopper") else "packed"


@triton.jit
def decode_pairs(pairs, KV_FORMAT: tl.constexpr, PAIRS: tl.constexpr):
    """int16, each two neighbouring codes -> the even and the odd columns, fp16, still to be multiplied by their scale.

    ('packed' e4m3: and by 2^8.)
    """
    if PAIRS == "plain":
        wide = pairs.to(tl.int32)
        if KV_FORMAT == "int8":
            even = (wide << 24) >> 24
            odd = wide >> 8
        else:  # which looks at the low byte alone
            even = decode_e4m3(wide)
            odd = decode_e4m3(wide >> 8)
        return even.to(tl.float16), odd.to(tl.float16)
    else:  # noqa: RET505  (Triton drops the branch not taken; what follows an early return it compiles)
        ASM: tl.constexpr = (
            INT8_PAIRS if KV_FORMAT == "int8" else E4M3_PAIRS_HARDWARE if PAIRS == "hardware" else E4M3_PAIRS
        )
        return tl.inline_asm_elementwise(
            ASM, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )  # fmt: skip


@triton.jit
def split_columns(rows, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """[BLOCK_M, BLOCK_D] -> its even and its odd columns."""
    return tl.split(tl.reshape(rows, [BLOCK_M, BLOCK_D // 2, 2]))


@triton.jit
def to_fp16(q):
    """(q in fp16, times a power of two that makes it fit; that power's inverse)."""
    if q.dtype == tl.float16:
        return q, 1.0
    else:  # noqa: RET505
        wide = q.to(tl.float32)
        largest = tl.max(tl.max(wide.to(tl.int32, bitcast=True) & MAGNITUDE_MASK, axis=1), axis=0)
        exponent = tl.maximum(largest >> 23, 15)  # biased by 127; smaller ones have no inverse power
        power = ((14 + 127 + 127 - exponent) << 23).to(tl.float32, bitcast=True)
        inverse = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        return (wide * power).to(tl.float16), inverse
