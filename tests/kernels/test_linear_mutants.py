"""Planted bugs in the linear kernels; the checks that the kernels pass must notice each.

Those that read out of bounds and use nothing of it, and those in PTX, only the emulator notices.
"""

from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.linear_cases import SMALL_TILES, LinearPoint, check_fp8_linear, check_linear
from tests.kernels.planting import mutants_of, noticed_emulated, record_there
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_splits import check_choice, check_order, check_sum
from tests.kernels.test_packed_codes import check_pack, check_round_trip
from tests.mutation import KillTable

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="a mutant that reads astray would take the CUDA context with it")


def groups_check(module):
    check_linear(module, LinearPoint(9, 40, 416, 32, True, num_splits=2, has_bias=True))
    check_linear(module, LinearPoint(3, 33, 192, 64, False, torch.float16, has_bias=True))
    check_linear(module, LinearPoint(17, 31, 384, 128, True, num_splits=2))
    check_linear(module, LinearPoint(1, 5, 128, 64, True))


def bytes_check(module):
    tiles = replace(SMALL_TILES, block_i=128)
    check_linear(module, LinearPoint(9, 40, 456, 0, False, num_splits=3, has_bias=True, tiles=tiles))
    check_linear(module, LinearPoint(17, 33, 64, 0, False, torch.float16, has_bias=True, tiles=tiles))


def weights_check(module):
    groups_check(module)
    bytes_check(module)


def pack_check(module):
    for kind in ("unsigned", "signed", "int8"):
        check_pack(module, kind, (3, 200))
        check_round_trip(module, kind, (3, 200))


def sum_check(module):
    check_sum(module, 3)
    check_sum(module, 2, (2, 512), torch.float16)
    check_order(module)


def fp8_check(module):
    check_fp8_linear(module, 9, 40, 208, num_splits=2, has_bias=True)
    check_fp8_linear(module, 17, 31, 272, torch.float16, has_bias=True)
    check_fp8_linear(module, 3, 5, 384, num_splits=2)


def tokens_check(module):
    check_tokens(module, 19, 80)
    check_tokens(module, 3, 576, torch.float16)


MUTANTS = {
    ("quantized_linear", weights_check): [
        ("row's words half as far", "(outputs * 32)[:, None]", "(outputs * 16)[:, None]"),
        ("runs at any outputs' distance", "(run * 32).to(tl.int64)[None, :] * num_outputs", "(run * 32).to(tl.int64)[None, :]"),
        ("columns of a run", "columns = run * RUN + word", "columns = run * 32 + word"),
        ("columns of a part", "first_column = step * BLOCK_I + part * 32", "first_column = step * BLOCK_I + part * 16"),
        ("always the first words", "step_ptrs = word_ptrs + step * words_per_step", "step_ptrs = word_ptrs"),
        ("packed activations assumed", "(tokens * x_row_stride)[None, :]", "(tokens * num_inputs)[None, :]"),
        ("all splits from the start", "first_step = split * steps_per_split", "first_step = 0 * split"),
        ("splits overlap", "tl.minimum(first_step + steps_per_split, num_steps)", "num_steps"),
        ("split after the end", "tl.minimum(first_step + steps_per_split, num_steps)", "first_step + steps_per_split"),
        ("steps of a split rounded down", "tl.cdiv(num_steps, tl.num_programs(2))", "num_steps // tl.num_programs(2)"),
        ("last step dropped", "num_steps = tl.cdiv(num_inputs, BLOCK_I)", "num_steps = num_inputs // BLOCK_I"),
        ("last column dropped", "mask=(first_column + columns < num_inputs)[:, None]", "mask=(first_column + columns < num_inputs - 1)[:, None]"),
        ("a rest never masked", "IS_EVEN=num_inputs % tiles.block_i == 0", "IS_EVEN=True"),
        ("unsigned codes as signed", "unpack_words(words, x_ptr, BITS, minima_ptr is None, UNPACK)", "unpack_words(words, x_ptr, BITS, True, UNPACK)"),
        ("groups of a step", "group = step * (BLOCK_I // GROUP) + g", "group = step + g"),
        ("groups after the last", "group = tl.minimum(group, num_inputs // GROUP - 1)", "group = group + 0"),
        ("scales by row", "scale_offs = group * num_outputs + outputs", "scale_offs = group + outputs"),
        ("no scale in groups", "acc += product * tl.load(scales_ptr + scale_offs).to(tl.float32)[:, None]", "acc += product"),
        ("no minimum", "acc += x_sum *", "acc += 0 * x_sum *"),
        ("sum of the last part's x", "x_sum = tl.dot(ones, x, x_sum,", "x_sum = tl.dot(ones, x, tl.zeros([BLOCK_O, BLOCK_T], tl.float32),"),
        ("the first part for all", "product = tl.dot(parts[part], x", "product = tl.dot(parts[0], x"),
        ("the first byte for both", "acc = tl.dot(parts[part], x, acc", "acc = tl.dot(parts[0], x, acc"),
        ("sums of the group before", "product = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)\n", "product = acc\n"),
        ("twos for ones", "tl.full([BLOCK_O, WORDS], 1.0,", "tl.full([BLOCK_O, WORDS], 2.0,"),
        ("no scale per output", "    if GROUP == 0:\n        acc *=", "    if GROUP == 1:\n        acc *="),
        ("bias left out", "acc += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]", "acc += 0"),
        ("splits in one place", "rows = split.to(tl.int64) * num_tokens + offs_t", "rows = offs_t"),
        ("outputs after the last", "(offs_o < num_outputs)[:, None]", "(offs_o >= 0)[:, None]"),
        ("tokens after the last", "(offs_t < num_tokens)[None, :]", "(offs_t >= 0)[None, :]"),
        ("first tile of tokens", "tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)", "tl.arange(0, BLOCK_T)"),
        ("first tile of outputs", "tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)", "tl.arange(0, BLOCK_O)"),
    ],
    ("packed_codes", weights_check, "quantized_linear"): [
        ("signs not spread", ")) >> (32 - BITS)", ")) >> (31 - BITS)"),
        ("unsigned parts too low", "(wide >> (BITS * part))", "(wide >> part)"),
        ("bytes exchanged", "unpack_part(words, x_ptr, 0, 8, SIGNED), unpack_part(words, x_ptr, 1, 8, SIGNED)", "unpack_part(words, x_ptr, 1, 8, SIGNED), unpack_part(words, x_ptr, 0, 8, SIGNED)"),
        ("a part twice", "unpack_part(words, x_ptr, 2, 4, SIGNED)", "unpack_part(words, x_ptr, 1, 4, SIGNED)"),
    ],
    ("packed_codes", pack_check): [
        ("parts not shifted", "(parts << shifts[:, None])", "(parts << 0)"),
        ("signs run over", "codes.to(torch.int32) & ((1 << bits) - 1)", "codes.to(torch.int32)"),
        ("rows first", "words.transpose(0, 1).contiguous()", "words.reshape(runs, num_outputs, WORDS_PER_RUN)"),
        ("runs of half the length", "cdiv(num_inputs, WORDS_PER_RUN * (16 // bits))", "cdiv(num_inputs, 16 * (16 // bits))"),
        ("parts inside out", "padded.view(num_outputs, runs, num_parts, WORDS_PER_RUN)", "padded.view(num_outputs, runs, WORDS_PER_RUN, num_parts).transpose(2, 3)"),
        ("signs lost", "if is_signed else 0", "if False else 0"),
        ("rows for runs", "parts.permute(1, 0, 2, 3).flatten(1)", "parts.permute(1, 2, 0, 3).flatten(1)"),
        ("unmasked parts", "(packed.to(torch.int32)[:, :, None] >> shifts[:, None]) & ((1 << bits) - 1)", "(packed.to(torch.int32)[:, :, None] >> shifts[:, None])"),
    ],
    ("linear_splits", groups_check, "quantized_linear"): [
        ("bias in each split", "launch(grid, partial, None)", "launch(grid, partial, bias)"),
        ("bias not in the sum", "sum_splits(partial, bias, out)", "sum_splits(partial, None, out)"),
    ],
    ("linear_splits", sum_check): [
        ("the first split only", "partial_ptr + split * numel + offs", "partial_ptr + offs"),
        ("the last split dropped", "tl.static_range(NUM_SPLITS)", "tl.static_range(NUM_SPLITS - 1)"),
        ("the other way round", "split * numel + offs", "(NUM_SPLITS - 1 - split) * numel + offs"),
        ("bias by element", "bias_ptr + offs % num_outputs", "bias_ptr + offs // num_outputs"),
        ("no bias", "if bias_ptr is not None:", "if NUM_SPLITS == 0:"),
        ("results after the last", "mask = offs < numel", "mask = offs >= 0"),
        ("a rest dropped", "cdiv(out.numel(), SUM_BLOCK)", "out.numel() // SUM_BLOCK"),
    ],
    ("linear_splits", check_choice): [
        ("tiles of tokens not counted", "num_tiles = tiles_of_tokens * tiles_of_outputs", "num_tiles = tiles_of_outputs"),
        ("as many for many tokens", "per_sm = 4 if tiles.block_t <= 16 else 2", "per_sm = 4"),
        ("no limit", ", MAX_SPLITS)\n", ")\n"),
        ("none at all", "if most else 1", "if most else 0"),
    ],
    ("fp8_linear", fp8_check): [
        ("last column dropped", "mask=(first + columns < num_inputs)[None, :], other=0)", "mask=(first + columns < num_inputs - 1)[None, :], other=0)"),
        ("a rest never masked", "IS_EVEN=num_inputs % tiles.block_i == 0", "IS_EVEN=True"),
        ("codes as integers", "return (decode_e4m3(codes).to(tl.float16),)", "return (codes.to(tl.float16),)"),
        ("x for weights", "load_codes(weight_ptrs, step", "load_codes(x_ptrs, step"),
        ("no scale of x", "    acc *= tl.load(x_scales_ptr + tokens)[None, :]\n", ""),
        ("no scale of w", "acc *= tl.load(scales_ptr + outputs).to(tl.float32)[:, None] * UNIT", "acc *= UNIT"),
        ("the unit of pairs", '65536.0 if FP8 == "packed" else 1.0', '65536.0 if FP8 == "packed" else 65536.0'),
        ("all splits from the start", "first_step = split * steps_per_split", "first_step = 0 * split"),
        ("splits overlap", "tl.minimum(first_step + steps_per_split, num_steps)", "num_steps"),
        ("steps of a split rounded down", "tl.cdiv(num_steps, tl.num_programs(2))", "num_steps // tl.num_programs(2)"),
        ("last step dropped", "num_steps = tl.cdiv(num_inputs, BLOCK_I)", "num_steps = num_inputs // BLOCK_I"),
        ("bias left out", "acc += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]", "acc += 0"),
        ("splits in one place", "rows = split.to(tl.int64) * num_tokens + offs_t", "rows = offs_t"),
        ("outputs after the last", "(offs_o < num_outputs)[:, None]", "(offs_o >= 0)[:, None]"),
        ("tokens after the last", "(offs_t < num_tokens)[None, :]", "(offs_t >= 0)[None, :]"),
        ("first tile of outputs", "tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)", "tl.arange(0, BLOCK_O)"),
    ],
    ("fp8_linear", tokens_check): [
        ("not scaled", "encode_e4m3(x * factor[:, None])", "encode_e4m3(x)"),
        ("the scale of int8", 'row_scales(absmax_bits(x), "fp8_e4m3")', 'row_scales(absmax_bits(x), "int8")'),
        ("scales not written", "    tl.store(scales_ptr + rows, scale, mask=mask_rows)\n", ""),
        ("packed rows assumed", "x_ptr + rows[:, None] * x_row_stride", "x_ptr + rows[:, None] * num_inputs"),
        ("last column dropped", "& (offs_i < num_inputs)[None, :]", "& (offs_i < num_inputs - 1)[None, :]"),
        ("last row dropped", "mask_rows = rows < num_rows", "mask_rows = rows < num_rows - 1"),
        ("rows dropped", "cdiv(num_rows, block_rows)", "num_rows // block_rows"),
    ],
}  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("check", "mutant"), mutants_of(MUTANTS))
def test_mutants_are_killed(check, mutant):
    KillTable.record(mutant, check)


# -- what only compiled code shows ------------------------------------------------------------------------------------

BF16, FP16 = torch.bfloat16, torch.float16


def compiled_groups_check(module):
    check_linear(module, LinearPoint(3, 20, 160, 32, True, BF16, tiles=None))
    check_linear(module, LinearPoint(3, 20, 128, 64, False, BF16, tiles=None))
    check_linear(module, LinearPoint(3, 20, 128, 32, True, FP16, tiles=None))
    check_linear(module, LinearPoint(3, 20, 128, 128, False, FP16, tiles=None))


def compiled_bytes_check(module):
    check_linear(module, LinearPoint(3, 20, 72, 0, False, BF16, tiles=None))


def compiled_fp8_check(module):
    check_fp8_linear(module, 3, 20, 144, BF16, tiles=None)


def compiled_sum_check(module):
    check_sum(module, 2, (3, 171), BF16)


# A tensor ends where its storage does for the emulator only if no guard follows it.
def exact_groups_check(module):
    x = torch.randn(3, 160, generator=torch.Generator().manual_seed(0)).to(BF16)
    module.quantized_linear(x, torch.zeros(2, 20, 32, dtype=torch.int16), torch.ones(5, 20), num_splits=1)


def exact_bytes_check(module):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(BF16)
    module.quantized_linear(x, torch.zeros(1, 20, 32, dtype=torch.int16), torch.ones(20), num_splits=1)


def exact_fp8_check(module):
    codes = torch.zeros(23, 144, dtype=torch.uint8).view(module.E4M3)
    module.fp8_linear(codes[:3].clone(), torch.ones(3), codes[3:].clone(), torch.ones(20), dtype=BF16, num_splits=1)


def exact_tokens_check(module):
    module.quantise_tokens(torch.ones(3, 80, dtype=BF16))


COMPILED_MUTANTS = {
    ("quantized_linear", exact_groups_check): [
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)"),
        ("outputs that are not there", "outputs = tl.minimum(offs_o, num_outputs - 1)", "outputs = offs_o"),
        ("columns that are not there", "mask=(first_column + columns < num_inputs)[:, None]", "mask=(columns >= 0)[:, None]"),
        ("groups that are not there", "group = tl.minimum(group, num_inputs // GROUP - 1)", "group = group + 0"),
    ],
    ("quantized_linear", exact_bytes_check): [
        ("runs that are not there", "mask=(step * BLOCK_I + run * RUN < num_inputs)[None, :]", "mask=(run >= 0)[None, :]"),
    ],
    ("quantized_linear", compiled_groups_check): [
        ("PTX for signed codes", "unpacking_code(bits, minima is None, x.dtype", "unpacking_code(bits, True, x.dtype"),
        ("PTX for unsigned codes", "unpacking_code(bits, minima is None, x.dtype", "unpacking_code(bits, False, x.dtype"),
    ],
    ("packed_codes", compiled_groups_check, "quantized_linear"): [
        ("bf16, the base of unsigned codes", "(torch.bfloat16, False): (0x4300, 0x3F80, 0xC300)", "(torch.bfloat16, False): (0x4300, 0x3F80, 0xC308)"),
        ("bf16, the base of signed codes", "(torch.bfloat16, True): (0x4308, 0x3F80, 0xC308)", "(torch.bfloat16, True): (0x4300, 0x3F80, 0xC308)"),
        ("fp16, the base of unsigned codes", "(torch.float16, False): (0x6400, 0x3C00, 0xE400)", "(torch.float16, False): (0x6400, 0x3C00, 0xE408)"),
        ("fp16, the base of signed codes", "(torch.float16, True): (0x6408, 0x3C00, 0xE408)", "(torch.float16, True): (0x6400, 0x3C00, 0xE408)"),
        ("base or-ed", "mask, base, 0x6A;", "mask, base, 0xEA;"),
        ("parts 3 bits apart", "shr.u32 part, $4, {4 * i};", "shr.u32 part, $4, {3 * i};"),
        ("3 bits of a code", "mov.b32 mask, 0x000F000F;", "mov.b32 mask, 0x00070007;"),
        ("fp16's instruction for both", 'kind = "f16x2" if dtype == torch.float16 else "bf16x2"', 'kind = "f16x2"'),
    ],
    ("packed_codes", compiled_bytes_check, "quantized_linear"): [
        ("neighbours for parts", "prmt.b32 $0, f0, f2, 0x7632;", "prmt.b32 $0, f0, f1, 0x7632;"),
        ("lower halves", "prmt.b32 $1, f1, f3, 0x7632;", "prmt.b32 $1, f1, f3, 0x5410;"),
        ("unsigned bytes", "xor.b32 u, $2, 0x80808080;", "mov.b32 u, $2;"),
        ("a base without the sign's", "sub.f32 f3, f3, 0f4B000080;", "sub.f32 f3, f3, 0f4B000000;"),
    ],
    ("fp8_linear", exact_fp8_check): [
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)"),
        ("outputs that are not there", "outputs = tl.minimum(offs_o, num_outputs - 1)", "outputs = offs_o"),
        ("columns that are not there", "mask=(first + columns < num_inputs)[None, :], other=0)", "mask=(columns >= 0)[None, :], other=0)"),
    ],
    ("fp8_linear", compiled_fp8_check): [
        ("the unit of pairs", '65536.0 if FP8 == "packed" else 1.0', '256.0 if FP8 == "packed" else 1.0'),
        ("even columns only", 'tl.static_range(2 if FP8 == "packed" else 1)', "tl.static_range(1)"),
        ("codes for words", "num_inputs // codes_per_element, num_outputs", "num_inputs, num_outputs"),
    ],
    ("fp8_linear", exact_tokens_check): [
        ("rows that are not there", "mask_rows = rows < num_rows", "mask_rows = rows >= 0"),
        ("padding of the last row", "& (offs_i < num_inputs)[None, :]", "& (offs_i < BLOCK_I)[None, :]"),
    ],
    ("linear_splits", compiled_sum_check): [
        ("elements that are not there", "mask = offs < numel", "mask = offs < numel + 16"),
    ],
}  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("check", "mutant"), mutants_of(COMPILED_MUTANTS))
def test_mutants_of_compiled_code(compiling, check, mutant):
    record_there(compiling, noticed_emulated, replace(mutant, name=f"{mutant.name}, compiled"), check, "sm_80")
