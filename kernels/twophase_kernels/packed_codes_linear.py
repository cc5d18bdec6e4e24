"""y = x w^T for few rows of x on a CPU, with weights of 4 or 8 bits, each read once.

    4 bits, in groups of 32, 64 or 128 columns:    w = scale * code + minimum, codes 0 to 15
    8 bits, a scale per output (row of w):         w = scale * code,           codes -128 to 127

A word of 32 bits holds neighbouring codes of one output, the first in its lowest bits. Words lie as `packed_linear`
has them: in blocks of 64 outputs, and in each a row of 64 words for every 8 columns (4 bits) or 4 (8 bits). Codes
become float32 by a shift, a mask and a conversion, whose time counts more here than the memory's: one row of SmolLM2's
products reads 20 GB/s in 4 bits and 30 in 8, where a thread can read 42. For several rows they are converted once, to
x's dtype, which has them exactly, and multiplied by `tl.dot`.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2, tl, triton
from twophase_kernels.arguments import check_arguments
from twophase_kernels.packed_linear import BLOCK_OUTPUTS, MAX_BLOCK_TOKENS, WORD_DTYPES, require_cpu

GROUPS = (32, 64, 128)  # of 4 bits
BYTE_WORDS = 32, 16, 8, 4  # of a block per step of the loop, in 8 bits: the first that divides W, or by rows the last
MIN_DOT_ROWS = tl.constexpr(4)  # of a tile that is multiplied by `tl.dot`


def fits(bits: int, num_inputs: int, group_size: int) -> bool:
    """Whether a weight of `bits` and `num_inputs` columns, of which `group_size` share a scale, has this layout."""
    if bits == 4:
        return group_size in GROUPS
    return bits == 8 and group_size == num_inputs and num_inputs % (4 * BYTE_WORDS[-1]) == 0


def pack_code_words(codes: Tensor, bits: int) -> Tensor:
    """Codes [O, I], 0 to 15 or -128 to 127 -> int32 [B, I * bits / 32, 64]; outputs are padded with codes 0.

    Raises:
        ValueError: I is not a multiple of a word's codes.
    """
    per_word = 32 // bits
    num_inputs = codes.shape[1]
    if num_inputs % per_word:
        raise ValueError(f"codes of {bits} bits must have a multiple of {per_word} columns, got {num_inputs}.")
    fields = (_in_blocks(codes).long() & (2**bits - 1)).unflatten(1, (-1, per_word))
    words = sum(fields[:, :, k] << (bits * k) for k in range(per_word))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def unpack_code_words(words: Tensor, bits: int, num_outputs: int) -> Tensor:
    """The codes [O, I] of `pack_code_words`, int32."""
    fields = torch.stack([words << (32 - bits - bits * k) for k in range(32 // bits)], dim=2)
    fields = fields >> (32 - bits) if bits == 8 else (fields >> (32 - bits)) & 15
    return fields.flatten(1, 2).transpose(1, 2).flatten(0, 1)[:num_outputs]


def pack_scales(scales: Tensor) -> Tensor:
    """[O, G] -> float32 [B, G, 64], padded with 0."""
    return _in_blocks(scales.float()).contiguous()


def _in_blocks(rows: Tensor) -> Tensor:
    """[O, N] -> [B, N, 64]."""
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % BLOCK_OUTPUTS))
    return padded.unflatten(0, (-1, BLOCK_OUTPUTS)).transpose(1, 2)


@triton.jit
def _columns(x_rows_ptr, at, k: tl.constexpr, mask_t, CODES: tl.constexpr):
    """[BLOCK_T, BLOCK_W] elements of x that meet the k-th code of each word, in fp32."""
    return tl.load(x_rows_ptr + CODES * at[None, :] + k, mask=mask_t, other=0.0).to(tl.float32)


@triton.jit
def _codes(words, k, BITS: tl.constexpr):
    """The k-th code of each word, in fp32."""
    codes = (words >> (4 * k)) & 15 if BITS == 4 else (words << (24 - 8 * k)) >> 24
    return codes.to(tl.float32)


@triton.jit
def _products_by_row(x_rows_ptr, words, at, mask_t, BITS: tl.constexpr):
    """(x times the codes [BLOCK_T, BLOCK_O], the sums of x [BLOCK_T]). Products of a word are added in pairs, so that
    no addition waits long for the one before."""
    CODES: tl.constexpr = 32 // BITS
    words = words[None, :, :]
    x0 = _columns(x_rows_ptr, at, 0, mask_t, CODES)
    x1 = _columns(x_rows_ptr, at, 1, mask_t, CODES)
    x2 = _columns(x_rows_ptr, at, 2, mask_t, CODES)
    x3 = _columns(x_rows_ptr, at, 3, mask_t, CODES)
    low = _codes(words, 0, BITS) * x0[:, :, None] + _codes(words, 1, BITS) * x1[:, :, None]
    high = _codes(words, 2, BITS) * x2[:, :, None] + _codes(words, 3, BITS) * x3[:, :, None]
    x_sum = (x0 + x1) + (x2 + x3)
    if BITS == 4:
        x4 = _columns(x_rows_ptr, at, 4, mask_t, CODES)
        x5 = _columns(x_rows_ptr, at, 5, mask_t, CODES)
        x6 = _columns(x_rows_ptr, at, 6, mask_t, CODES)
        x7 = _columns(x_rows_ptr, at, 7, mask_t, CODES)
        low += _codes(words, 4, BITS) * x4[:, :, None] + _codes(words, 5, BITS) * x5[:, :, None]
        high += _codes(words, 6, BITS) * x6[:, :, None] + _codes(words, 7, BITS) * x7[:, :, None]
        x_sum += (x4 + x5) + (x6 + x7)
    return tl.sum(low + high, axis=1), tl.sum(x_sum, axis=1)


@triton.jit
def _products_by_dot(x_rows_ptr, words, start, mask_t, BITS: tl.constexpr):
    """The same, with the codes converted once for all rows."""
    CODES: tl.constexpr = 32 // BITS
    BLOCK_W: tl.constexpr = words.shape[0]
    x = tl.load(x_rows_ptr + (start * CODES + tl.arange(0, BLOCK_W * CODES))[None, :], mask=mask_t, other=0.0)
    codes = _codes(words[:, None, :], tl.arange(0, CODES)[None, :, None], BITS).to(x.dtype)
    sums = tl.dot(x, tl.reshape(codes, [BLOCK_W * CODES, words.shape[1]]), input_precision="ieee")
    return sums, tl.sum(x.to(tl.float32), axis=1)


@triton.jit
def packed_codes_linear_kernel(
    x_ptr,  # [T, I]
    words_ptr,  # int32 [B, W, 64] contiguous
    scales_ptr,  # fp32 [B, G, 64]
    minima_ptr,  # like scales_ptr; None in 8 bits
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O] contiguous
    num_tokens,
    num_outputs,
    num_words,  # W
    x_row_stride,
    BITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr,  # in 4 bits: the words of a group
    BLOCK_O: tl.constexpr,
):
    """One program: BLOCK_T rows of x times one block of outputs."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    block = tl.program_id(1).to(tl.int64)
    offs_o = tl.arange(0, BLOCK_O)
    mask_t = (rows < num_tokens)[:, None]
    x_rows_ptr = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    words_ptr += block * num_words * BLOCK_O
    if BITS == 4:
        scales_ptr += block * (num_words // BLOCK_W) * BLOCK_O
        minima_ptr += block * (num_words // BLOCK_W) * BLOCK_O
    else:
        scales_ptr += block * BLOCK_O
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for start in range(0, num_words, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)
        words = tl.load(words_ptr + at[:, None] * BLOCK_O + offs_o[None, :])
        if BLOCK_T < MIN_DOT_ROWS:
            sums, x_sum = _products_by_row(x_rows_ptr, words, at, mask_t, BITS)
        else:
            sums, x_sum = _products_by_dot(x_rows_ptr, words, start, mask_t, BITS)
        if BITS == 4:
            group_offs = start // BLOCK_W * BLOCK_O + offs_o
            scale, minimum = tl.load(scales_ptr + group_offs), tl.load(minima_ptr + group_offs)
            total += sums * scale[None, :] + x_sum[:, None] * minimum[None, :]
        else:
            total += sums
    if BITS == 8:
        total *= tl.load(scales_ptr + offs_o)[None, :]
    outputs = block * BLOCK_O + offs_o
    mask_o = outputs < num_outputs
    if bias_ptr is not None:
        total += tl.load(bias_ptr + outputs, mask=mask_o, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask_t & mask_o[None, :])


def packed_codes_linear(
    x: Tensor, words: Tensor, scales: Tensor, minima: Tensor | None, num_outputs: int, bias: Tensor | None = None
) -> Tensor:
    """x [T, I] times weights of few bits, + bias [O]: -> [T, O], of x's dtype. Sums are fp32.

    Args:
        x: float32 or bfloat16, rows contiguous.
        words: int32 [B, W, 64] of `pack_code_words`.
        scales: float32 [B, G, 64] of `pack_scales`.
        minima: Like scales, with 4 bits; None: the codes have 8 bits.
        num_outputs: O.
        bias: In x's dtype, or None.

    Raises:
        ValueError: A tensor breaks one of these rules.
        KernelsUnavailableError: No kernel can run here.
    """
    require_cpu("packed_codes_linear", x.dtype)
    bits, num_inputs = 8 if minima is None else 4, x.shape[1:].numel()
    sizes = check_arguments(
        {"B": cdiv(num_outputs, BLOCK_OUTPUTS), "W": num_inputs * bits // 32, "O": num_outputs},
        x=(x, "T | I", tuple(WORD_DTYPES)),
        words=(words, "B W 64", torch.int32),
        scales=(scales, "B G 64", torch.float32),
        minima=(minima, "B G 64", torch.float32),
        bias=(bias, "O", x.dtype),
    )
    if not sizes["G"] or not fits(bits, num_inputs, num_inputs // sizes["G"]):
        raise ValueError(f"{bits} bits of {num_inputs} columns have no scales of shape {list(scales.shape)}.")
    return launch_packed_codes_linear(x, words, scales, minima, num_outputs, bias)


def launch_packed_codes_linear(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    num_outputs: int,
    bias: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`packed_codes_linear` without its checks, for a layer that made them. `dtype` is the result's; None: x's."""
    num_tokens = len(x)
    out = torch.empty((num_tokens, num_outputs), dtype=dtype or x.dtype, device=x.device)
    if num_tokens:
        block_t = min(next_power_of_2(num_tokens), MAX_BLOCK_TOKENS)
        if minima is not None:
            block_w = words.shape[1] // scales.shape[1]
        else:
            block_w = next(n for n in BYTE_WORDS[0 if block_t >= MIN_DOT_ROWS else -1 :] if words.shape[1] % n == 0)
        packed_codes_linear_kernel[(cdiv(num_tokens, block_t), words.shape[0])](
            x, words, scales, minima, bias, out, num_tokens, num_outputs, words.shape[1], x.stride(0),
            BITS=8 if minima is None else 4, BLOCK_T=block_t,
            BLOCK_W=block_w, BLOCK_O=BLOCK_OUTPUTS,
        )  # fmt: skip
    return out


def packed_codes_linear_reference(
    x: Tensor, words: Tensor, scales: Tensor, minima: Tensor | None, num_outputs: int, bias: Tensor | None = None
) -> Tensor:
    """Reference for `packed_codes_linear` in plain torch."""
    codes = unpack_code_words(words, 8 if minima is None else 4, num_outputs)
    per_output = [each.transpose(1, 2).flatten(0, 1)[:num_outputs] for each in (scales, minima) if each is not None]
    weight = codes.unflatten(1, (scales.shape[1], -1)) * per_output[0][:, :, None]
    if minima is not None:
        weight = weight + per_output[1][:, :, None]
    y = x.float() @ weight.flatten(1).T
    return (y if bias is None else y + bias.float()).to(x.dtype)
