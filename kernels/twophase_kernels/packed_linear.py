"""y = x w^T for few rows of x on a CPU, with the weight in the layout that oneDNN gives it.

One token's product reads each weight once, so that its time is the time of the memory. A weight [O, I] is therefore
laid out in the order of reading: blocks of 64 outputs, and in each a row of 64 words of 4 bytes for every column
(float32), or for every two columns (bfloat16: the even column in the lower half, the odd column in the upper half):

    float32    words[b, i, o] = w[64 b + o, i]                                        float32 [B, W, 64], W >= I
    bfloat16   words[b, i, o] = (w[64 b + o, 2 i], w[64 b + o, 2 i + 1])              int32   [B, W, 64], W >= I / 2

B is O / 64 rounded up, W is a multiple of 16, and the padding is zeros. A row of words is four vectors of AVX-512;
AVX512_BF16 multiplies pairs as they are. With AVX-512 oneDNN lays out weights exactly so (its names are `BA16a64b` and
`BA16a64b2a`, and W is padded alike), so that one copy serves its product of many rows and this kernel: see
`twophase_features.triton.linear`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from twophase_kernels._triton import KernelsUnavailableError, cdiv, mode, next_power_of_2, tl, triton
from twophase_kernels.arguments import check_arguments

BLOCK_OUTPUTS = 64
WORD_ALIGNMENT = 16  # of W
BLOCK_WORDS = 32, 16  # of a block per step of the loop: the first that divides W
MAX_BLOCK_TOKENS = 32
WORD_DTYPES = {torch.float32: torch.float32, torch.bfloat16: torch.int32}  # of weights, of words


def columns_per_word(dtype: torch.dtype) -> int:
    """1 for float32, 2 for bfloat16. Raises ValueError for another dtype."""
    if dtype not in WORD_DTYPES:
        raise ValueError(f"weights are packed in float32 or bfloat16, got {dtype}.")
    return 4 // dtype.itemsize


def packed_shape(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """(B, W, 64) of the words of a weight [O, I]."""
    num_words = cdiv(num_inputs, columns_per_word(dtype))
    return cdiv(num_outputs, BLOCK_OUTPUTS), cdiv(num_words, WORD_ALIGNMENT) * WORD_ALIGNMENT, BLOCK_OUTPUTS


def pack_weight(weight: Tensor) -> Tensor:
    """float32 or bfloat16 [O, I] -> words [B, W, 64].

    Raises:
        ValueError: The weight is of another dtype, not a matrix, or empty.
    """
    columns = columns_per_word(weight.dtype)
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be [O, I], and neither of them 0, got {list(weight.shape)}.")
    num_outputs, num_inputs = weight.shape
    blocks, num_words, width = packed_shape(num_outputs, num_inputs, weight.dtype)
    padding = 0, num_words * columns - num_inputs, 0, blocks * width - num_outputs
    padded = F.pad(weight, padding).view(blocks, width, num_words, columns)
    return padded.transpose(1, 2).contiguous().view(WORD_DTYPES[weight.dtype]).view(blocks, num_words, width)


def unpack_weight(words: Tensor, num_outputs: int, num_inputs: int) -> Tensor:
    """The weight [O, I] of `pack_weight`."""
    dtype = torch.bfloat16 if words.dtype == torch.int32 else torch.float32
    blocks, num_words, width = words.shape
    parts = words.view(dtype).view(blocks, num_words, width, columns_per_word(dtype)).transpose(1, 2)
    return parts.reshape(blocks * width, -1)[:num_outputs, :num_inputs]


@triton.jit
def packed_linear_kernel(
    x_ptr,  # [T, I]
    words_ptr,  # [B, W, 64] contiguous
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O] contiguous
    num_tokens,
    num_outputs,
    num_inputs,
    num_words,  # W
    x_row_stride,
    COLUMNS_PER_WORD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr,  # divides W
    BLOCK_O: tl.constexpr,
):
    """One program: BLOCK_T rows of x times one block of outputs.

    Programs of the same block are neighbours, so that its words come from the cache for all but the first. The words of
    a step are [BLOCK_W, COLUMNS_PER_WORD, BLOCK_O] as they lie, which `tl.dot` on a CPU multiplies without a copy.
    """
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    block = tl.program_id(1).to(tl.int64)  # a weight may have more than 2^31 bytes
    offs_o = tl.arange(0, BLOCK_O)
    offs_in_word = tl.arange(0, COLUMNS_PER_WORD)
    offs_w = tl.arange(0, BLOCK_W)
    offs_x = tl.arange(0, BLOCK_W * COLUMNS_PER_WORD)
    mask_t = (rows < num_tokens)[:, None]
    x_rows_ptr = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    w_ptr = words_ptr.to(x_ptr.dtype, bitcast=True) + block * num_words * BLOCK_O * COLUMNS_PER_WORD
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for start in range(0, num_words, BLOCK_W):
        words = (start + offs_w)[:, None, None] * BLOCK_O + offs_o[None, None, :]
        w = tl.load(w_ptr + words * COLUMNS_PER_WORD + offs_in_word[None, :, None])
        at_x = (start * COLUMNS_PER_WORD + offs_x)[None, :]
        x = tl.load(x_rows_ptr + at_x, mask=mask_t & (at_x < num_inputs), other=0.0)
        w = tl.reshape(w, [BLOCK_W * COLUMNS_PER_WORD, BLOCK_O])
        total = tl.dot(x, w, total, input_precision="ieee")
    outputs = block * BLOCK_O + offs_o
    mask_o = outputs < num_outputs
    if bias_ptr is not None:
        total += tl.load(bias_ptr + outputs, mask=mask_o, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask_t & mask_o[None, :])


def packed_linear(
    x: Tensor, words: Tensor, num_outputs: int, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """x [T, I] times a weight of `pack_weight`, + bias [O]: -> [T, O]. Sums are fp32.

    Any T is allowed.

    Args:
        x: float32 or bfloat16, as the weight was; rows contiguous.
        words: [B, W, 64].
        num_outputs: O.
        bias: In x's dtype, or None.
        dtype: The result's dtype, x's or float32; None: x's.

    Raises:
        ValueError: An argument breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype; or kernels are compiled for a GPU.
    """
    require_cpu("packed_linear", x.dtype)
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}.")
    num_blocks, num_words, _ = packed_shape(num_outputs, x.shape[1:].numel(), x.dtype)
    check_arguments(
        {"B": num_blocks, "W": num_words, "O": num_outputs},
        x=(x, "T | I", tuple(WORD_DTYPES)),
        words=(words, "B W 64", WORD_DTYPES[x.dtype]),
        bias=(bias, "O", x.dtype),
    )
    if dtype not in (None, x.dtype, torch.float32):
        raise ValueError(f"dtype must be x's, float32 or None, got {dtype} for x of {x.dtype}.")
    return launch_packed_linear(x, words, num_outputs, bias, dtype)


def launch_packed_linear(
    x: Tensor, words: Tensor, num_outputs: int, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """`packed_linear` without its checks, which take half as long as a small product: for a layer that made them."""
    num_tokens, num_inputs = x.shape
    out = torch.empty((num_tokens, num_outputs), dtype=dtype or x.dtype, device=x.device)
    if num_tokens:
        block_t = min(next_power_of_2(num_tokens), MAX_BLOCK_TOKENS)
        block_w = next(n for n in BLOCK_WORDS if words.shape[1] % n == 0)
        packed_linear_kernel[(cdiv(num_tokens, block_t), words.shape[0])](
            x, words, bias, out, num_tokens, num_outputs, num_inputs, words.shape[1], x.stride(0),
            COLUMNS_PER_WORD=columns_per_word(x.dtype), BLOCK_T=block_t, BLOCK_W=block_w, BLOCK_O=BLOCK_OUTPUTS,
        )  # fmt: skip
    return out


def require_cpu(kernel: str, dtype: torch.dtype) -> None:
    """Raises KernelsUnavailableError where kernels run on a GPU, or not in this dtype."""
    how = mode(dtype)
    if how not in ("cpu", "interpreted"):
        raise KernelsUnavailableError(
            f"{kernel} is a kernel for a CPU, and kernels are {how} in this process. Use torch's product, or "
            "start Python with TWOPHASE_KERNELS=cpu."
        )


def packed_linear_reference(
    x: Tensor, words: Tensor, num_outputs: int, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Reference for `packed_linear` in plain torch."""
    y = x.float() @ unpack_weight(words, num_outputs, x.shape[1]).float().T
    return (y if bias is None else y + bias.float()).to(dtype or x.dtype)
