"""Planted bugs in the linear kernels; the checks that the kernels pass must notice each."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.linear_cases import SMALL_TILES, LinearPoint, check_fp8_linear, check_linear
from tests.kernels.planting import noticing
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_splits import check_choice, check_order, check_sum
from tests.kernels.test_packed_codes import check_pack

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="a mutant that reads astray would take the CUDA context with it")

FP16 = torch.float16


def groups_check(module):
    check_linear(module, LinearPoint(9, 40, 416, 32, True, num_splits=2, has_bias=True))
    check_linear(module, LinearPoint(3, 33, 192, 64, False, FP16, has_bias=True))
    check_linear(module, LinearPoint(17, 31, 384, 128, True, num_splits=2))
    check_linear(module, LinearPoint(1, 5, 128, 64, True))


def bytes_check(module):
    tiles = replace(SMALL_TILES, block_i=128)
    check_linear(module, LinearPoint(9, 40, 456, 0, False, num_splits=3, has_bias=True, tiles=tiles))
    check_linear(module, LinearPoint(17, 33, 64, 0, False, FP16, has_bias=True, tiles=tiles))


def weights_check(module):
    groups_check(module)
    bytes_check(module)


def pack_check(module):
    for kind in ("unsigned", "signed", "int8"):
        check_pack(module, kind, (3, 200))


def sum_check(module):
    check_sum(module, 3)
    check_sum(module, 2, (2, 512), FP16)
    check_order(module)


def fp8_check(module):
    check_fp8_linear(module, LinearPoint(9, 40, 208, num_splits=2, has_bias=True))
    check_fp8_linear(module, LinearPoint(17, 31, 272, dtype=FP16, has_bias=True))
    check_fp8_linear(module, LinearPoint(3, 5, 384, num_splits=2))


def tokens_check(module):
    check_tokens(module, 19, 80)
    check_tokens(module, 3, 576, FP16)


MUTANTS = {
    ("quantized_linear",): [
        ("packed activations assumed", "(tokens * x_row_stride)[None, :]", "(tokens * num_inputs)[None, :]", weights_check),
        ("splits overlap", "tl.minimum(first_step + steps_per_split, num_steps)", "num_steps", weights_check),
        ("last step dropped", "num_steps = tl.cdiv(num_inputs, BLOCK_I)", "num_steps = num_inputs // BLOCK_I", weights_check),
        ("a rest never masked", "IS_EVEN=num_inputs % tiles.block_i == 0", "IS_EVEN=True", weights_check),
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)", weights_check),
        ("columns that are not there", "mask=(first_column + columns < num_inputs)[:, None]", "mask=(columns >= 0)[:, None]", weights_check),
        ("runs that are not there", "mask=(step * BLOCK_I + run * RUN < num_inputs)[None, :]", "mask=(run >= 0)[None, :]", weights_check),
        ("groups after the last", "group = tl.minimum(group, num_inputs // GROUP - 1)", "group = group + 0", weights_check),
        ("sums of the group before", "product = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)\n", "product = acc\n", weights_check),
        ("outputs after the last", "(offs_o < num_outputs)[:, None]", "(offs_o >= 0)[:, None]", weights_check),
    ],
    ("packed_codes", "quantized_linear"): [
        ("unsigned parts too low", "(wide >> (BITS * part))", "(wide >> part)", weights_check),
    ],
    ("packed_codes",): [
        ("signs run over", "codes.to(torch.int32) & ((1 << bits) - 1)", "codes.to(torch.int32)", pack_check),
        ("signs lost", "if is_signed else 0", "if False else 0", pack_check),
    ],
    ("linear_splits", "quantized_linear"): [
        ("bias in each split", "launch(grid, partial, None)", "launch(grid, partial, bias)", groups_check),
        ("bias not in the sum", "sum_splits(partial, bias, out)", "sum_splits(partial, None, out)", groups_check),
    ],
    ("linear_splits",): [
        ("the other way round", "split * numel + offs", "(NUM_SPLITS - 1 - split) * numel + offs", sum_check),
        ("results after the last", "mask = offs < numel", "mask = offs >= 0", sum_check),
        ("tiles of tokens not counted", "num_tiles = tiles_of_tokens * tiles_of_outputs", "num_tiles = tiles_of_outputs", check_choice),
        ("no limit", ", MAX_SPLITS)\n", ")\n", check_choice),
    ],
    ("fp8_linear",): [
        ("last column dropped", "mask=(first + columns < num_inputs)[None, :], other=0)", "mask=(first + columns < num_inputs - 1)[None, :], other=0)", fp8_check),
        ("last step dropped", "num_steps = tl.cdiv(num_inputs, BLOCK_I)", "num_steps = num_inputs // BLOCK_I", fp8_check),
        ("outputs after the last", "(offs_o < num_outputs)[:, None]", "(offs_o >= 0)[:, None]", fp8_check),
        ("packed rows assumed", "x_ptr + rows[:, None] * x_row_stride", "x_ptr + rows[:, None] * num_inputs", tokens_check),
        ("last row dropped", "mask_rows = rows < num_rows", "mask_rows = rows < num_rows - 1", tokens_check),
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)", fp8_check),
        ("columns that are not there", "mask=(first + columns < num_inputs)[None, :], other=0)", "mask=(columns >= 0)[None, :], other=0)", fp8_check),
        ("rows that are not there", "mask_rows = rows < num_rows", "mask_rows = rows >= 0", tokens_check),
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
