"""Weights of 4 or 8 bits as `quantized_linear` reads them: how codes lie in memory, and how registers take them apart.

A weight [O, I] is cut along I into runs of 64 bytes per row: 128 codes of 4 bits, or 64 of 8. A run is 32 words of 16
bits, and a word holds codes that are 32 columns apart:

    word w, 4 bits:  bits 15..12  column 96 + w     11..8  64 + w     7..4  32 + w     3..0  w
    word w, 8 bits:  bits 15..8   column 32 + w     7..0   w

    packed: int16 [runs, O, 32], for each run the words of all rows, one row after another

- A tile of words, shifted and masked, is one tile of weights per part, and part i of a run is its columns 32 i to
  32 i + 31: threads exchange nothing, the activations that belong to a part are contiguous, and a part lies within one
  group of 32, 64 or 128 columns that share a scale.
- The words of a run lie side by side for all rows, so that a tile of a single run is one contiguous piece of memory.
- Codes are in two's complement, or, with minima, unsigned. The last run is filled up with zeros.

On NVIDIA two words, one register, become pairs of 16-bit floats by few instructions. A float whose exponent makes the
last bit of its mantissa worth 1 is `base + u` once u is written into that mantissa, and one multiply-add takes the base
away, exactly. (The idea: arXiv:2211.10017.)
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, tl, triton
from twophase_kernels.arguments import check_forms
from twophase_kernels.code_pairs import INT8_PAIRS
from twophase_kernels.gpu import Generation

WORDS_PER_RUN = 32

# fp16 1024 + u is 0x6400 | u for u < 1024; bf16 128 + u is 0x4300 | u for u < 128. Signed codes are u - 8, where u is
# the code with the highest of its four bits turned over, which the base does too. (base, 1, minus the base)
INT4_CONSTANTS = {
    (torch.float16, False): (0x6400, 0x3C00, 0xE400),
    (torch.float16, True): (0x6408, 0x3C00, 0xE408),
    (torch.bfloat16, False): (0x4300, 0x3F80, 0xC300),
    (torch.bfloat16, True): (0x4308, 0x3F80, 0xC308),
}
# bf16 has no room for 8 bits beside a base, fp32 has: 0x4B000000 | u is 2^23 + u, here with u = code + 128. The rest is
# an integer of at most 8 bits, so that the upper half of its bits is the same number in bf16.
INT8_TO_BF16 = """
{
    .reg .b32 u, f0, f1, f2, f3;
    xor.b32 u, $2, 0x80808080;
    prmt.b32 f0, u, 0x4B000000, 0x7650;
    prmt.b32 f1, u, 0x4B000000, 0x7651;
    prmt.b32 f2, u, 0x4B000000, 0x7652;
    prmt.b32 f3, u, 0x4B000000, 0x7653;
    sub.f32 f0, f0, 0f4B000080;
    sub.f32 f1, f1, 0f4B000080;
    sub.f32 f2, f2, 0f4B000080;
    sub.f32 f3, f3, 0f4B000080;
    prmt.b32 $0, f0, f2, 0x7632;
    prmt.b32 $1, f1, f3, 0x7632;
}
"""


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes [O, I], integers -> packed int16 [runs, O, 32].

    Codes of 8 bits are from -128 to 127, of 4 bits from -8 to 7 or from 0 to 15. Whether they are signed is not kept:
    `unpack_codes` and the kernel are told.

    Raises:
        ValueError: The codes are of another shape or dtype, or out of range.
    """
    if codes.ndim != 2 or codes.is_floating_point() or codes.is_complex() or codes.shape[1] == 0:
        raise ValueError(f"codes must be integers [O, I] with I > 0, got {codes.dtype} {tuple(codes.shape)}.")
    lowest, highest = (int(codes.min()), int(codes.max())) if codes.numel() and not codes.is_meta else (0, 0)
    half = 2 ** (bits - 1)
    if not (-half <= lowest and highest < half) and not (bits == 4 and lowest >= 0 and highest < 16):
        unsigned = " (without minima) or from 0 to 15 (with minima)" if bits == 4 else ""
        raise ValueError(f"codes must be from {-half} to {half - 1}{unsigned}, got {lowest} to {highest}.")
    num_parts = 16 // bits
    num_outputs, num_inputs = codes.shape
    runs = num_runs(num_inputs, bits)
    padded = torch.zeros(num_outputs, runs * num_parts * WORDS_PER_RUN, dtype=torch.int32, device=codes.device)
    padded[:, :num_inputs] = codes.to(torch.int32) & ((1 << bits) - 1)
    parts = padded.view(num_outputs, runs, num_parts, WORDS_PER_RUN)
    shifts = bits * torch.arange(num_parts, device=codes.device)
    words = (parts << shifts[:, None]).sum(2, dtype=torch.int32)
    words = torch.where(words < 2**15, words, words - 2**16).to(torch.int16)
    return words.transpose(0, 1).contiguous()


def unpack_codes(packed: Tensor, bits: int, num_inputs: int, is_signed: bool = True) -> Tensor:
    """The inverse of `pack_codes`: int8 [O, num_inputs]. Raises ValueError for another shape or dtype."""
    check_forms({"runs": num_runs(num_inputs, bits)}, packed=(packed, "runs O 32", torch.int16))
    shifts = bits * torch.arange(16 // bits, device=packed.device)
    parts = (packed.to(torch.int32)[:, :, None] >> shifts[:, None]) & ((1 << bits) - 1)  # [runs, O, parts, 32]
    codes = parts.permute(1, 0, 2, 3).flatten(1)[:, :num_inputs].contiguous()
    sign = 2 ** (bits - 1) if is_signed else 0
    return ((codes ^ sign) - sign).to(torch.int8)


def num_runs(num_inputs: int, bits: int) -> int:
    """Runs that hold a row."""
    return cdiv(num_inputs, WORDS_PER_RUN * (16 // bits))


def unpacking_code(bits: int, is_signed: bool, dtype: torch.dtype, generation: Generation) -> str:
    """The kernels' argument UNPACK: PTX that unpacks two words, or 'plain': Triton's integer operations.

    fp32 has no pairs; AMD has other instructions, which have not been tried here.
    """
    if dtype == torch.float32 or generation in ("cpu", "cdna"):
        return "plain"
    if bits == 8:
        return INT8_PAIRS.value if dtype == torch.float16 else INT8_TO_BF16
    base, one, minus_base = (f"0x{constant:04X}{constant:04X}" for constant in INT4_CONSTANTS[dtype, is_signed])
    kind = "f16x2" if dtype == torch.float16 else "bf16x2"
    lines = [".reg .b32 mask, base, one, minus_base, part;", "mov.b32 mask, 0x000F000F;", f"mov.b32 base, {base};"]
    lines += [f"mov.b32 one, {one};", f"mov.b32 minus_base, {minus_base};"]
    for i in range(4):
        lines += [
            f"shr.u32 part, $4, {4 * i};",
            "lop3.b32 part, part, mask, base, 0x6A;",  # (part & mask) ^ base, in one instruction
            f"fma.rn.{kind} ${i}, part, one, minus_base;",
        ]
    return "\n".join(["{", *lines, "}"])


@triton.jit
def unpack_part(words, x_ptr, part: tl.constexpr, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """int16, any shape -> each word's code number `part`, in the dtype that x_ptr points to."""
    wide = words.to(tl.int32)
    if SIGNED:  # noqa: SIM108  (each is long enough)
        codes = (wide << (32 - BITS * (part + 1))) >> (32 - BITS)
    else:
        codes = (wide >> (BITS * part)) & ((1 << BITS) - 1)
    # By way of fp32: compilers convert integers to fp32 best, and the interpreter knows no bf16.
    return codes.to(tl.float32).to(x_ptr.dtype.element_ty)


@triton.jit
def unpack_words(words, x_ptr, BITS: tl.constexpr, SIGNED: tl.constexpr, UNPACK: tl.constexpr):
    """int16, any shape -> a tuple of 16 / BITS tensors, the codes of each part, in the dtype that x_ptr points to."""
    if UNPACK == "plain" and BITS == 8:
        return unpack_part(words, x_ptr, 0, 8, SIGNED), unpack_part(words, x_ptr, 1, 8, SIGNED)
    elif UNPACK == "plain":  # noqa: RET505  (Triton drops the branch not taken; what follows an early return it compiles)
        return (
            unpack_part(words, x_ptr, 0, 4, SIGNED),
            unpack_part(words, x_ptr, 1, 4, SIGNED),
            unpack_part(words, x_ptr, 2, 4, SIGNED),
            unpack_part(words, x_ptr, 3, 4, SIGNED),
        )
    elif BITS == 8:
        return tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [words],
            dtype=(x_ptr.dtype.element_ty, x_ptr.dtype.element_ty), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            UNPACK, "=r,=r,=r,=r,r", [words],
            dtype=(x_ptr.dtype.element_ty, x_ptr.dtype.element_ty, x_ptr.dtype.element_ty, x_ptr.dtype.element_ty),
            is_pure=True, pack=2,
        )  # fmt: skip
