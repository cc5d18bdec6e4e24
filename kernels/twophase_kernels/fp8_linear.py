"""y = x w^T with both sides in fp8 e4m3 (W8A8): a scale per token for x, one per output for w.

    x[t, i] = x_scale[t] * x_code[t, i]    w[o, i] = scale[o] * code[o, i]
    y[t, o] = x_scale[t] * scale[o] * (sum over i of code[o, i] x_code[t, i])

Products of codes are exact, sums are in fp32, scales are applied once, at the end. `quantise_tokens` makes x's codes.

GPUs with fp8 matrix instructions (Ada, Hopper and later) multiply codes as they are. Hopper's instruction cuts products
off 13 bits below the largest while it sums (arXiv:2412.19437, section 3.3.2; seen in the sums of an H200), so its sums
are added to fp32 ones every 128 columns. Others take e4m3 as fp16, of which it is a part: on NVIDIA two codes at a time
as in `code_pairs`, even columns and odd columns of both sides apart, which makes two products of half as many columns.

Weights are the matrix instruction's left operand, as in `quantized_linear`; columns are split as in `linear_splits`.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, mode, next_power_of_2, row_tile, tl, triton
from twophase_kernels.arguments import FLOATS, check_arguments
from twophase_kernels.code_pairs import decode_pairs
from twophase_kernels.gpu import Generation, gpu_generation
from twophase_kernels.linear_splits import LinearTiles, in_splits
from twophase_kernels.quant import absmax_bits, decode_e4m3, encode_e4m3, quantise_reference, row_scales

E4M3 = torch.float8_e4m3fn
ROW_ALIGNMENT = 16  # bytes, and so codes: rows are loaded 16 bytes at a time


@triton.jit(do_not_specialize=["num_rows"])
def quantise_tokens_kernel(
    x_ptr,  # [T, I], rows x_row_stride apart
    codes_ptr,  # uint8 [T, I] contiguous: e4m3 bits
    scales_ptr,  # fp32 [T]
    x_row_stride,
    num_rows,
    num_inputs,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """One program: BLOCK_ROWS whole rows, held in registers between their maximum and their codes."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    offs_i = tl.arange(0, BLOCK_I)
    mask_rows = rows < num_rows
    mask = mask_rows[:, None] & (offs_i < num_inputs)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_row_stride + offs_i[None, :], mask=mask, other=0.0).to(tl.float32)
    scale, factor = row_scales(absmax_bits(x), "fp8_e4m3")
    tl.store(codes_ptr + rows[:, None] * num_inputs + offs_i[None, :], encode_e4m3(x * factor[:, None]), mask=mask)
    tl.store(scales_ptr + rows, scale, mask=mask_rows)


def quantise_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, I], rows contiguous, I at most 65,536 -> (codes float8_e4m3fn [T, I], scales fp32 [T]), x ~ scale * code.

    A token's scale takes its largest magnitude to 448, the largest of e4m3. A token with a NaN or an infinity gets a
    non-finite scale, and NaN from `fp8_linear`. Does not wait for the device.

    Raises:
        ValueError: x breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    check_arguments(x=(x, "T | I", FLOATS))
    num_rows, num_inputs = x.shape
    block_rows, block_i, num_warps = row_tile(num_inputs)
    codes = torch.empty(num_rows, num_inputs, dtype=torch.uint8, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        quantise_tokens_kernel[(cdiv(num_rows, block_rows),)](
            x, codes, scales, x.stride(0), num_rows, num_inputs,
            BLOCK_ROWS=block_rows, BLOCK_I=block_i, num_warps=num_warps,
        )  # fmt: skip
    return codes.view(E4M3), scales


def quantise_tokens_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Reference for `quantise_tokens` in plain torch."""
    codes, scales = quantise_reference(x, "fp8_e4m3")
    return codes.view(E4M3), scales


@triton.jit
def load_codes(ptrs, first, columns, num_inputs, FP8: tl.constexpr, IS_EVEN: tl.constexpr):
    """A tile of codes, one row per entry of dimension 0, as the product takes it: a tuple of one or two tiles.

    FP8 'packed': of words of two codes. columns: of a row, in codes or words, from `first` on.
    """
    if IS_EVEN:
        codes = tl.load(ptrs + first)
    elif FP8 == "hardware":
        codes = tl.load(ptrs + first, mask=(first + columns < num_inputs)[None, :], other=0.0)
    else:
        codes = tl.load(ptrs + first, mask=(first + columns < num_inputs)[None, :], other=0)
    if FP8 == "hardware":
        return (codes,)
    elif FP8 == "packed":  # noqa: RET505  (Triton drops the branch not taken; what follows an early return it compiles)
        return decode_pairs(codes, "fp8_e4m3", "packed")
    else:
        return (decode_e4m3(codes).to(tl.float16),)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["x_scales_ptr", "bias_ptr"])
def fp8_linear_kernel(
    x_ptr,  # [T, I] contiguous: e4m3; 'packed': int16 [T, I / 2], 'plain': uint8
    x_scales_ptr,  # fp32 [T]
    weight_ptr,  # [O, I] contiguous, like x_ptr
    scales_ptr,  # [O]
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O]; of several splits partial sums, fp32 [splits, T, O]
    num_tokens,
    num_inputs,  # elements of a row
    num_outputs,
    FP8: tl.constexpr,  # see `fp8_way`
    IS_EVEN: tl.constexpr,  # num_inputs is a multiple of BLOCK_I
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,  # elements of a row per step
    NUM_STAGES: tl.constexpr,
):
    """One program: BLOCK_O outputs of BLOCK_T tokens, over one split of the columns."""
    offs_t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    split = tl.program_id(2)
    # Beyond the last token or output the last one is computed again, and not stored: loads need no mask for it.
    tokens = tl.minimum(offs_t, num_tokens - 1).to(tl.int64)
    outputs = tl.minimum(offs_o, num_outputs - 1)
    columns = tl.arange(0, BLOCK_I)
    x_ptrs = x_ptr + (tokens * num_inputs)[:, None] + columns[None, :]
    weight_ptrs = weight_ptr + (outputs.to(tl.int64) * num_inputs)[:, None] + columns[None, :]

    num_steps = tl.cdiv(num_inputs, BLOCK_I)
    steps_per_split = tl.cdiv(num_steps, tl.num_programs(2))
    first_step = split * steps_per_split
    acc = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    for step in tl.range(first_step, tl.minimum(first_step + steps_per_split, num_steps), num_stages=NUM_STAGES):
        weights = load_codes(weight_ptrs, step * BLOCK_I, columns, num_inputs, FP8, IS_EVEN)
        xs = load_codes(x_ptrs, step * BLOCK_I, columns, num_inputs, FP8, IS_EVEN)
        if FP8 == "hardware":
            acc = tl.dot(weights[0], tl.trans(xs[0]), acc, max_num_imprecise_acc=min(BLOCK_I, 128))
        else:
            for i in tl.static_range(2 if FP8 == "packed" else 1):
                acc = tl.dot(weights[i], tl.trans(xs[i]), acc)

    # 'packed' decodes either side to 2^-8 of its value.
    UNIT: tl.constexpr = 65536.0 if FP8 == "packed" else 1.0
    acc *= tl.load(scales_ptr + outputs).to(tl.float32)[:, None] * UNIT
    acc *= tl.load(x_scales_ptr + tokens)[None, :]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
    rows = split.to(tl.int64) * num_tokens + offs_t
    mask = (offs_o < num_outputs)[:, None] & (offs_t < num_tokens)[None, :]
    tl.store(out_ptr + rows[None, :] * num_outputs + offs_o[:, None], acc.to(out_ptr.dtype.element_ty), mask=mask)


def fp8_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    scales: Tensor,
    *,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
    tiles: LinearTiles | None = None,
) -> Tensor:
    """x w^T + bias, both sides in e4m3. Does not wait for the device. The same call gives the same bits.

    Args:
        x: Codes of the activations, float8_e4m3fn [T, I], contiguous, I a multiple of 16; T may be 0.
        x_scales: fp32 [T], contiguous.
        weight: Codes of the weight, float8_e4m3fn [O, I], contiguous; any O. No NaN: pairs of fp16 cannot represent
            NaN.
        scales: [O], contiguous, any float dtype.
        dtype: The result's: float32, float16 or bfloat16.
        bias, num_splits: As for `quantized_linear`, as are the errors.
        out: [T, O] of `dtype` to write to, contiguous; it is returned.
        tiles: Instead of `fp8_linear_tiles`, for experiments.
    """
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be float32, float16 or bfloat16, got {dtype}.")
    mode(dtype)
    check_arguments(
        x=(x, "T I", E4M3),
        x_scales=(x_scales, "T", torch.float32),
        weight=(weight, "O I", E4M3),
        scales=(scales, "O", FLOATS),
        bias=(bias, "O", FLOATS),
        out=(out, "T O", dtype),
    )
    (num_tokens, num_inputs), num_outputs = x.shape, len(weight)
    if num_inputs % ROW_ALIGNMENT or num_inputs == 0:
        raise ValueError(f"x and weight must have a multiple of {ROW_ALIGNMENT} columns, got {num_inputs}.")
    generation = gpu_generation(x.device)
    if tiles is None:
        tiles = fp8_linear_tiles(num_tokens, num_outputs, generation)
    way = fp8_way(generation)
    codes_per_element = 2 if way == "packed" else 1
    if way != "hardware":
        x, weight = (codes.view(torch.int16 if way == "packed" else torch.uint8) for codes in (x, weight))

    def launch(grid: tuple[int, int, int], target: Tensor, bias: Tensor | None) -> None:
        fp8_linear_kernel[grid](
            x, x_scales, weight, scales, bias, target, num_tokens, num_inputs // codes_per_element, num_outputs,
            FP8=way, IS_EVEN=num_inputs % tiles.block_i == 0,
            BLOCK_O=tiles.block_o, BLOCK_T=tiles.block_t, BLOCK_I=tiles.block_i // codes_per_element,
            NUM_STAGES=tiles.num_stages, **tiles.options,
        )  # fmt: skip

    return in_splits(launch, tiles, (num_tokens, num_outputs, num_inputs), num_splits, out, bias, dtype, x.device)


def fp8_way(generation: Generation) -> str:
    """The kernel's argument FP8: 'hardware', matrix instructions on e4m3; 'packed', PTX that makes pairs of fp16;
    'plain', integer operations that make fp16."""
    return {"ampere": "packed", "ada": "hardware", "hopper": "hardware"}.get(generation, "plain")


def fp8_linear_tiles(num_tokens: int, num_outputs: int, generation: Generation) -> LinearTiles:
    """The tile table.

    Its figures were chosen for code without spills and with few instructions, not yet by measured time.
    """
    block_t = min(max(8, next_power_of_2(max(1, num_tokens))), 64)
    if generation == "cpu":  # a tile's cost hardly depends on its size
        return LinearTiles(min(512, next_power_of_2(max(1, num_outputs))), block_t, 256, num_warps=4, num_stages=1)
    if generation == "cdna":
        return LinearTiles(64, min(max(16, block_t), 32), 128, num_warps=4, num_stages=3)
    return LinearTiles(128, block_t, 128, num_warps=8 if block_t == 64 else 4, num_stages=3)


def fp8_linear_reference(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, *, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """Reference for `fp8_linear` in plain torch."""
    y = x.float() @ weight.float().T * x_scales[:, None] * scales.float()
    return (y if bias is None else y + bias.float()).to(dtype)
