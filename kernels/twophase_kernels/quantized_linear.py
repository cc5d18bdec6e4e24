"""y = x w^T for weights of 4 or 8 bits and activations as they are (W4A16, W8A16), without ever writing w out.

    4 bits, in groups of 32, 64 or 128 columns:    w = scale * code + minimum, codes 0 to 15
                                                   w = scale * code,           codes -8 to 7
    8 bits, a scale per output (row of w):         w = scale * code,           codes -128 to 127

Decode reads each weight once for few tokens, so bytes are the limit, and after them the instructions that turn codes
into numbers.

- The matrix instruction multiplies bare codes, exact in 16 bits, and sums in fp32. Scales and minima are applied to the
  sums of a group:  y[t, o] += scale[o, g] * (sum over i in g of code[o, i] x[t, i]) + minimum[o, g] * (sum of x[t, i]).
  So nothing is rounded but the result, and a scale costs an operation per group and token, not per weight.
- Weights are the instruction's left operand, y^T = w x^T. That side may come from registers, where codes become
  numbers, and has 16 rows at least; tokens are on the right, where 8 are enough.
- The sum of x over a group is a product as well, with a matrix of ones. It comes out where the other sums are, and the
  matrix unit has time.

     w: BLOCK_O rows   | part 0 | part 1 | part 2 | part 3 |    32 columns each, taken out of one tile of words
     x: BLOCK_T tokens | part 0 | part 1 | part 2 | part 3 |    loaded as they lie

Each tile of tokens unpacks the weights anew. For a long prompt, which is bound by arithmetic, writing them out once for
a dense product may be faster; the length where it pays has not been measured.

How codes are packed: `packed_codes`. How columns are split over programs, and summed up again: `linear_splits`.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import next_power_of_2, tl, triton
from twophase_kernels.arguments import FLOATS, check_arguments
from twophase_kernels.gpu import Generation, gpu_generation
from twophase_kernels.linear_splits import LinearTiles, in_splits
from twophase_kernels.packed_codes import num_runs, unpack_codes, unpack_words, unpacking_code

GROUPS = (32, 64, 128)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["bias_ptr"])
def quantized_linear_kernel(
    x_ptr,  # [T, I], rows x_row_stride apart
    packed_ptr,  # int16 [runs, O, 32], see `packed_codes`
    scales_ptr,  # [I / GROUP, O]; or [O], a scale per output
    minima_ptr,  # like scales_ptr; None: codes are signed
    bias_ptr,  # [O] or None
    out_ptr,  # [T, O]; of several splits partial sums, [splits, T, O]
    x_row_stride,
    num_tokens,
    num_inputs,
    num_outputs,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,  # columns that share a scale; 0: all
    UNPACK: tl.constexpr,  # see `unpacking_code`
    IS_EVEN: tl.constexpr,  # num_inputs is a multiple of BLOCK_I
    BLOCK_O: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_I: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One program: BLOCK_O outputs of BLOCK_T tokens, over one split of the columns."""
    NUM_PARTS: tl.constexpr = 16 // BITS
    RUN: tl.constexpr = 32 * NUM_PARTS
    WORDS: tl.constexpr = BLOCK_I // NUM_PARTS
    PARTS_PER_GROUP: tl.constexpr = GROUP // 32 if GROUP > 0 else NUM_PARTS
    offs_t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    split = tl.program_id(2)
    # Beyond the last token or output the last one is computed again, and not stored: loads need no mask for it.
    tokens = tl.minimum(offs_t, num_tokens - 1).to(tl.int64)
    outputs = tl.minimum(offs_o, num_outputs - 1)
    offs_w = tl.arange(0, WORDS)
    run, word = offs_w // 32, offs_w % 32
    columns = run * RUN + word  # of part 0
    word_ptrs = packed_ptr + (run * 32).to(tl.int64)[None, :] * num_outputs + (outputs * 32)[:, None] + word[None, :]
    x_ptrs = x_ptr + (tokens * x_row_stride)[None, :] + columns[:, None]

    num_steps = tl.cdiv(num_inputs, BLOCK_I)
    steps_per_split = tl.cdiv(num_steps, tl.num_programs(2))
    first_step = split * steps_per_split
    words_per_step = tl.full([], WORDS, tl.int64) * num_outputs
    acc = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    # With num_stages said here, scales and minima, too, are copied ahead.
    for step in tl.range(first_step, tl.minimum(first_step + steps_per_split, num_steps), num_stages=NUM_STAGES):
        step_ptrs = word_ptrs + step * words_per_step
        if IS_EVEN:
            words = tl.load(step_ptrs)
        else:
            words = tl.load(step_ptrs, mask=(step * BLOCK_I + run * RUN < num_inputs)[None, :], other=0)
        parts = unpack_words(words, x_ptr, BITS, minima_ptr is None, UNPACK)
        for g in tl.static_range(NUM_PARTS // PARTS_PER_GROUP):
            if GROUP > 0:
                product = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
                x_sum = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
            for part in tl.static_range(g * PARTS_PER_GROUP, (g + 1) * PARTS_PER_GROUP):
                first_column = step * BLOCK_I + part * 32
                if IS_EVEN:
                    x = tl.load(x_ptrs + first_column)
                else:
                    x = tl.load(x_ptrs + first_column, mask=(first_column + columns < num_inputs)[:, None], other=0.0)
                if GROUP == 0:
                    acc = tl.dot(parts[part], x, acc, input_precision="ieee")
                else:
                    product = tl.dot(parts[part], x, product, input_precision="ieee")
                    if minima_ptr is not None:
                        ones = tl.full([BLOCK_O, WORDS], 1.0, x_ptr.dtype.element_ty)
                        x_sum = tl.dot(ones, x, x_sum, input_precision="ieee")
            if GROUP > 0:
                group = step * (BLOCK_I // GROUP) + g
                if not IS_EVEN:  # the last step may have columns, all zeros, of groups that are not there
                    group = tl.minimum(group, num_inputs // GROUP - 1)
                scale_offs = group * num_outputs + outputs
                acc += product * tl.load(scales_ptr + scale_offs).to(tl.float32)[:, None]
                if minima_ptr is not None:
                    acc += x_sum * tl.load(minima_ptr + scale_offs).to(tl.float32)[:, None]

    if GROUP == 0:
        acc *= tl.load(scales_ptr + outputs).to(tl.float32)[:, None]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
    rows = split.to(tl.int64) * num_tokens + offs_t
    mask = (offs_o < num_outputs)[:, None] & (offs_t < num_tokens)[None, :]
    tl.store(out_ptr + rows[None, :] * num_outputs + offs_o[:, None], acc.to(out_ptr.dtype.element_ty), mask=mask)


def quantized_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    minima: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
    tiles: LinearTiles | None = None,
) -> Tensor:
    """x w^T + bias for weights of 4 bits in groups, or of 8 bits with a scale per output. Does not wait for the device.

    The same call gives the same bits. For other numbers of tokens tiles and splits may differ, and with them last bits.

    Args:
        x: [T, I], float32, float16 or bfloat16, rows contiguous; T may be 0.
        packed: int16 [runs, O, 32], `pack_codes` of codes [O, I]; any O, with 8 bits any I.
        scales: Contiguous, any float dtype: [O] for 8 bits; [I / G, O] for 4 bits, in groups of G = 32, 64 or 128
            neighbouring columns. (Groups come first, so that neighbouring outputs' groups are contiguous.)
        minima: Like the scales of 4 bits; codes are then 0 to 15. None: symmetric codes, -8 to 7.
        bias: [O], contiguous, any float dtype; or None.
        num_splits: Programs that share the columns of an output, 1 to 16; by default `choose_num_splits`.
        out: [T, O] of x's dtype to write to, contiguous.
        tiles: Instead of `quantized_linear_tiles`, for experiments; block_i must be 128 for 4 bits, a multiple of 64
            for 8.

    Returns:
        [T, O] in x's dtype.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    bits = _bits(scales)
    if bits == 8 and minima is not None:
        raise ValueError(f"minima are for 4 bits, whose scales are [I / G, O], got scales {list(scales.shape)}.")
    form = "groups O" if bits == 4 else "O"
    sizes = check_arguments(
        {"runs": num_runs(x.shape[1:].numel(), bits)},
        x=(x, "T | I", FLOATS),
        packed=(packed, "runs O 32", torch.int16),
        scales=(scales, form, FLOATS),
        minima=(minima, form, FLOATS),
        bias=(bias, "O", FLOATS),
        out=(out, "T O", x.dtype),
    )
    num_tokens, num_inputs, num_outputs = sizes["T"], sizes["I"], sizes["O"]
    group = _group_size(num_inputs, sizes["groups"]) if bits == 4 else 0
    generation = gpu_generation(x.device)
    if tiles is None:
        tiles = quantized_linear_tiles(num_tokens, num_outputs, group, minima is not None, x.dtype, generation)
    run = 32 * (16 // bits)
    if tiles.block_i % run or (group and tiles.block_i != run):
        raise ValueError(f"block_i must be {'' if group else 'a multiple of '}{run}, got {tiles.block_i}.")
    unpack = unpacking_code(bits, minima is None, x.dtype, generation)

    def launch(grid: tuple[int, int, int], target: Tensor, bias: Tensor | None) -> None:
        quantized_linear_kernel[grid](
            x, packed, scales, minima, bias, target, x.stride(0), num_tokens, num_inputs, num_outputs,
            BITS=bits, GROUP=group, UNPACK=unpack, IS_EVEN=num_inputs % tiles.block_i == 0,
            BLOCK_O=tiles.block_o, BLOCK_T=tiles.block_t, BLOCK_I=tiles.block_i, NUM_STAGES=tiles.num_stages,
            **tiles.options,
        )  # fmt: skip

    return in_splits(launch, tiles, (num_tokens, num_outputs, num_inputs), num_splits, out, bias, x.dtype, x.device)


def quantized_linear_tiles(
    num_tokens: int, num_outputs: int, group: int, has_minima: bool, dtype: torch.dtype, generation: Generation
) -> LinearTiles:
    """The tile table; group 0: 8 bits, a scale per output.

    Its figures were chosen for code without spills and with few instructions, not yet by measured time.
    """
    block_t = min(max(8, next_power_of_2(max(1, num_tokens))), 64)
    if generation == "cpu":  # a tile's cost hardly depends on its size
        block_o = min(512, next_power_of_2(max(1, num_outputs)))
        return LinearTiles(block_o, block_t, 128 if group else 256, num_warps=4, num_stages=1)
    if generation == "cdna":  # 16 is the least that its matrix instructions take; 64 KiB of LDS
        return LinearTiles(64, min(max(16, block_t), 32), 128, num_warps=4, num_stages=3)
    if dtype == torch.float32:
        # Multiplied without matrix units. (For 64 outputs and 16 tokens Triton 3.7 would take Blackwell's, in TF32.)
        return LinearTiles(32, min(block_t, 16), 128, num_warps=4, num_stages=3)
    if generation == "hopper" and (has_minima or group == 32):
        block_t = min(block_t, 32)  # more sums of groups, and matrices of ones, do not fit Blackwell's tensor memory
    num_stages = 4 if group and block_t < 64 else 3  # a tile of 8 bits is twice as large
    if block_t == 8:  # 168 registers are room for three programs per SM
        return LinearTiles(128, block_t, 128, num_warps=4, num_stages=num_stages, max_registers=168)
    is_wide = block_t == 64 or (generation == "hopper" and block_t == 32)
    max_registers = 255 if generation == "hopper" and block_t == 64 else 0
    return LinearTiles(128, block_t, 128, 8 if is_wide else 4, num_stages, max_registers)


def _bits(scales: Tensor) -> int:
    """Scales of groups belong to 4 bits, scales of outputs to 8."""
    return 4 if scales.ndim == 2 else 8


def _group_size(num_inputs: int, num_groups: int) -> int:
    if num_groups == 0 or num_inputs % num_groups or num_inputs // num_groups not in GROUPS:
        raise ValueError(
            f"scales must be [I / G, O] with groups of G = {', '.join(map(str, GROUPS))} columns, of which I = "
            f"{num_inputs} must be a multiple, got {num_groups} groups."
        )
    return num_inputs // num_groups


def quantized_linear_reference(
    x: Tensor, packed: Tensor, scales: Tensor, minima: Tensor | None = None, *, bias: Tensor | None = None
) -> Tensor:
    """Reference for `quantized_linear` in plain torch: the weights written out in fp32, and one product."""
    codes = unpack_codes(packed, _bits(scales), x.shape[1], is_signed=minima is None)
    groups = codes.float().unflatten(1, (len(scales) if scales.ndim == 2 else 1, -1))
    w = groups * torch.atleast_2d(scales.float()).T[:, :, None]
    if minima is not None:
        w += minima.float().T[:, :, None]
    y = x.float() @ w.flatten(1).T
    return (y if bias is None else y + bias.float()).to(x.dtype)
