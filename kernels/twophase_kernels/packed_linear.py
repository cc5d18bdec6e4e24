"""y = x w^T for few rows of x on a CPU, with a weight that is read once, in the order in which it lies.

One token's product reads each weight once, so that its time is the time of the memory. A weight [O, I] is therefore
laid out in the order of reading: blocks of 64 outputs, and in each a row of 64 words of 4 bytes for every column
(float32), or for every 2 columns (bfloat16), 4 (codes of 8 bits) or 8 (of 4), the first in a word's lowest bits:

    float32    words[b, i, o] = w[64 b + o, i]                                        float32 [B, W, 64], W >= I
    bfloat16   words[b, i, o] = (w[64 b + o, 2 i], w[64 b + o, 2 i + 1])              int32   [B, W, 64], W >= I / 2
    8 bits     w = scale * code, a scale per output, codes -128 to 127                int32   [B, I / 4, 64]
    4 bits     w = scale * code + minimum, in groups of 32, 64 or 128 columns,        int32   [B, I / 8, 64]
               codes 0 to 15

B is O / 64 rounded up. W is a multiple of 16 for floats; the padding is zeros. A row of words is four vectors of
AVX-512; AVX512_BF16 multiplies pairs as they are. With AVX-512 oneDNN lays out weights exactly so (its names are
`BA16a64b` and `BA16a64b2a`, and W is padded alike), so that one copy serves its product of many rows and this kernel:
see `twophase_features.triton.linear`.

Codes become float32 by a shift, a mask and a conversion, whose time counts more here than the memory's: one row of
SmolLM2's products reads 20 GB/s in 4 bits and 30 in 8, where a thread can read 42. For several rows they are converted
once, to x's dtype, which has them exactly, and multiplied by `tl.dot`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels._triton import KernelsUnavailableError, cdiv, mode, next_power_of_2, tl, triton
from twophase_kernels.arguments import check_arguments

BLOCK_OUTPUTS = 64
WORD_ALIGNMENT = 16  # of W, of floats
MAX_BLOCK_TOKENS = 32
WORD_DTYPES = {torch.float32: torch.float32, torch.bfloat16: torch.int32}  # of weights, of words
GROUPS = (32, 64, 128)  # of 4 bits
MIN_BYTE_WORDS = 4  # of 8 bits: W is a multiple
MIN_DOT_ROWS = tl.constexpr(4)  # of a tile of codes that is multiplied by `tl.dot`


def pack_weight(weight: Tensor) -> Tensor:
    """float32 or bfloat16 [O, I] -> words [B, W, 64].

    Raises:
        ValueError: The weight is of another dtype, not a matrix, or empty.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be [O, I], and neither of them 0, got {list(weight.shape)}.")
    num_inputs = weight.shape[1]
    padding = padded_words(num_inputs, weight.dtype) * columns_per_word(weight.dtype) - num_inputs
    return _in_blocks(F.pad(weight, (0, padding)).contiguous().view(WORD_DTYPES[weight.dtype])).contiguous()


def unpack_weight(words: Tensor, num_outputs: int, num_inputs: int) -> Tensor:
    """The weight [O, I] of `pack_weight`."""
    dtype = torch.bfloat16 if words.dtype == torch.int32 else torch.float32
    return _out_of_blocks(words, num_outputs).contiguous().view(dtype)[:, :num_inputs]


def columns_per_word(dtype: torch.dtype) -> int:
    """1 for float32, 2 for bfloat16. Raises ValueError for another dtype."""
    if dtype not in WORD_DTYPES:
        raise ValueError(f"weights are packed in float32 or bfloat16, got {dtype}.")
    return 4 // dtype.itemsize


def padded_words(num_inputs: int, dtype: torch.dtype) -> int:
    """W of a weight of floats."""
    return cdiv(cdiv(num_inputs, columns_per_word(dtype)), WORD_ALIGNMENT) * WORD_ALIGNMENT


def fits(bits: int, num_inputs: int, group_size: int) -> bool:
    """Whether codes of `bits` and `num_inputs` columns, of which `group_size` share a scale, have this layout."""
    if bits == 4:
        return group_size in GROUPS
    return bits == 8 and group_size == num_inputs and num_inputs % (4 * MIN_BYTE_WORDS) == 0


def pack_code_words(codes: Tensor, bits: int) -> Tensor:
    """Codes [O, I], 0 to 15 or -128 to 127 -> int32 [B, I * bits / 32, 64]; outputs are padded with codes 0.

    Raises:
        ValueError: I is not a multiple of a word's codes.
    """
    per_word = 32 // bits
    num_inputs = codes.shape[1]
    if num_inputs % per_word:
        raise ValueError(f"codes of {bits} bits must have a multiple of {per_word} columns, got {num_inputs}.")
    fields = (codes.long() & (2**bits - 1)).unflatten(1, (-1, per_word))
    words = sum(fields[:, :, k] << (bits * k) for k in range(per_word))
    return _in_blocks(torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)).contiguous()


def unpack_code_words(words: Tensor, bits: int, num_outputs: int) -> Tensor:
    """The codes [O, I] of `pack_code_words`, int32."""
    rows = _out_of_blocks(words, num_outputs)
    fields = torch.stack([rows << (32 - bits - bits * k) for k in range(32 // bits)], dim=2).flatten(1)
    return fields >> (32 - bits) if bits == 8 else (fields >> (32 - bits)) & 15


def pack_scales(scales: Tensor) -> Tensor:
    """[O, G] -> float32 [B, G, 64], padded with 0."""
    return _in_blocks(scales.float()).contiguous()


def _in_blocks(rows: Tensor) -> Tensor:
    """[O, N] -> [B, N, 64]."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % BLOCK_OUTPUTS))
    return padded.unflatten(0, (-1, BLOCK_OUTPUTS)).transpose(1, 2)


def _out_of_blocks(blocks: Tensor, num_outputs: int) -> Tensor:
    """[B, N, 64] -> [O, N]."""
    return blocks.transpose(1, 2).flatten(0, 1)[:num_outputs]


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
def _plus_product(
    total, x_rows_ptr, words_ptr, start, num_inputs, mask_t, BLOCK_W: tl.constexpr, BLOCK_O: tl.constexpr
):
    """total + x times the floats [BLOCK_T, BLOCK_O] of some words.

    They are [BLOCK_W, COLUMNS, BLOCK_O] as they lie, which `tl.dot` on a CPU multiplies without a copy.
    """
    COLUMNS: tl.constexpr = 32 // x_rows_ptr.dtype.element_ty.primitive_bitwidth
    w_ptr = words_ptr.to(x_rows_ptr.dtype, bitcast=True)
    offs = (start + tl.arange(0, BLOCK_W))[:, None, None] * BLOCK_O + tl.arange(0, BLOCK_O)[None, None, :]
    w = tl.load(w_ptr + offs * COLUMNS + tl.arange(0, COLUMNS)[None, :, None])
    at_x = (start * COLUMNS + tl.arange(0, BLOCK_W * COLUMNS))[None, :]
    x = tl.load(x_rows_ptr + at_x, mask=mask_t & (at_x < num_inputs), other=0.0)
    return tl.dot(x, tl.reshape(w, [BLOCK_W * COLUMNS, BLOCK_O]), total, input_precision="ieee")


@triton.jit
def packed_linear_kernel(
    x_ptr,  # [T, I]
    words_ptr,  # [B, W, 64] contiguous
    scales_ptr,  # fp32 [B, G, 64]; None of floats
    minima_ptr,  # like scales_ptr; None unless in 4 bits
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O] contiguous
    num_tokens,
    num_outputs,
    num_inputs,
    num_words,  # W
    x_row_stride,
    BITS: tl.constexpr,  # 4 or 8; 0: the words hold floats
    BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr,  # divides W; in 4 bits: the words of a group
    BLOCK_O: tl.constexpr,
):
    """One program: BLOCK_T rows of x times one block of outputs.

    Programs of the same block are neighbours, so that its words come from the cache for all but the first.
    """
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    block = tl.program_id(1).to(tl.int64)  # a weight may have more than 2^31 bytes
    offs_o = tl.arange(0, BLOCK_O)
    mask_t = (rows < num_tokens)[:, None]
    x_rows_ptr = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    words_ptr += block * num_words * BLOCK_O
    if BITS == 4:
        scales_ptr += block * (num_words // BLOCK_W) * BLOCK_O
        minima_ptr += block * (num_words // BLOCK_W) * BLOCK_O
    elif BITS == 8:
        scales_ptr += block * BLOCK_O
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for start in range(0, num_words, BLOCK_W):
        if BITS == 0:
            total = _plus_product(total, x_rows_ptr, words_ptr, start, num_inputs, mask_t, BLOCK_W, BLOCK_O)
        else:
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


def packed_linear(
    x: Tensor,
    words: Tensor,
    num_outputs: int,
    bias: Tensor | None = None,
    *,
    scales: Tensor | None = None,
    minima: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, I] times a packed weight, + bias [O]: -> [T, O]. Sums are fp32.

    Any T is allowed.

    Args:
        x: float32 or bfloat16, of `pack_weight` as the weight was; rows contiguous.
        words: [B, W, 64] of `pack_weight` or `pack_code_words`.
        num_outputs: O.
        bias: In x's dtype, or None.
        scales: float32 [B, G, 64] of `pack_scales`; None: the words hold floats.
        minima: Like scales, with 4 bits; None with scales: the codes have 8 bits.
        dtype: The result's dtype, x's or float32; None: x's.

    Raises:
        ValueError: An argument breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype; or kernels are compiled for a GPU.
    """
    how = mode(x.dtype)
    if how not in ("cpu", "interpreted"):
        raise KernelsUnavailableError(
            f"packed_linear is a kernel for a CPU, and kernels are {how} in this process. Use torch's product, or "
            "start Python with TWOPHASE_KERNELS=cpu."
        )
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}.")
    if scales is None and minima is not None:
        raise ValueError("minima belong to codes of 4 bits, which have scales too.")
    bits, num_inputs = _bits(scales, minima), x.shape[1:].numel()
    num_words = num_inputs * bits // 32 if bits else padded_words(num_inputs, x.dtype)
    sizes = check_arguments(
        {"B": cdiv(num_outputs, BLOCK_OUTPUTS), "W": num_words, "O": num_outputs},
        x=(x, "T | I", tuple(WORD_DTYPES)),
        words=(words, "B W 64", torch.int32 if bits else WORD_DTYPES[x.dtype]),
        scales=(scales, "B G 64", torch.float32),
        minima=(minima, "B G 64", torch.float32),
        bias=(bias, "O", x.dtype),
    )
    if bits and not (sizes["G"] and fits(bits, num_inputs, num_inputs // sizes["G"])):
        raise ValueError(f"{bits} bits of {num_inputs} columns have no scales of shape {list(scales.shape)}.")
    if dtype not in (None, x.dtype, torch.float32):
        raise ValueError(f"dtype must be x's, float32 or None, got {dtype} for x of {x.dtype}.")
    return launch_packed_linear(x, words, num_outputs, bias, scales, minima, dtype)


def launch_packed_linear(
    x: Tensor,
    words: Tensor,
    num_outputs: int,
    bias: Tensor | None,
    scales: Tensor | None = None,
    minima: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`packed_linear` without its checks, which take half as long as a small product: for a layer that made them."""
    num_tokens, num_inputs = x.shape
    out = torch.empty((num_tokens, num_outputs), dtype=dtype or x.dtype, device=x.device)
    if num_tokens:
        bits, block_t = _bits(scales, minima), min(next_power_of_2(num_tokens), MAX_BLOCK_TOKENS)
        block_w = _words_per_step(bits, block_t, words.shape[1], scales)
        packed_linear_kernel[(cdiv(num_tokens, block_t), words.shape[0])](
            x, words, scales, minima, bias, out, num_tokens, num_outputs, num_inputs, words.shape[1], x.stride(0),
            BITS=bits, BLOCK_T=block_t, BLOCK_W=block_w, BLOCK_O=BLOCK_OUTPUTS,
        )  # fmt: skip
    return out


def _bits(scales: Tensor | None, minima: Tensor | None) -> int:
    """Bits per code; 0: the words hold floats."""
    return 0 if scales is None else 8 if minima is None else 4


def _words_per_step(bits: int, block_t: int, num_words: int, scales: Tensor | None) -> int:
    """BLOCK_W: in 4 bits a group's words, else as many as divide W; of bytes that go by rows the least."""
    if bits == 4 and scales is not None:
        return num_words // scales.shape[1]
    choices = (MIN_BYTE_WORDS,) if bits == 8 and block_t < MIN_DOT_ROWS else (32, 16, 8, MIN_BYTE_WORDS)
    return next(n for n in choices if num_words % n == 0)


def packed_linear_reference(
    x: Tensor,
    words: Tensor,
    num_outputs: int,
    bias: Tensor | None = None,
    *,
    scales: Tensor | None = None,
    minima: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Reference for `packed_linear` in plain torch."""
    if scales is None:
        weight = unpack_weight(words, num_outputs, x.shape[1]).float()
    else:
        codes = unpack_code_words(words, _bits(scales, minima), num_outputs)
        weight = codes.unflatten(1, (scales.shape[1], -1)) * _out_of_blocks(scales, num_outputs)[:, :, None]
        if minima is not None:
            weight = weight + _out_of_blocks(minima, num_outputs)[:, :, None]
        weight = weight.flatten(1)
    y = x.float() @ weight.T
    return (y if bias is None else y + bias.float()).to(dtype or x.dtype)
