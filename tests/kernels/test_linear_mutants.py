"""Planted bugs in the linear kernels; the checks that the kernels pass must notice each.

Those that read out of bounds and use nothing of it only the emulator notices.
"""

from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.linear_cases import SMALL_TILES, LinearPoint, check_fp8_linear, check_linear
from tests.kernels.planting import KERNELS, noticed_emulated, noticing
from tests.kernels.test_fp8_linear import check_tokens
from tests.kernels.test_linear_splits import check_choice, check_order, check_sum
from tests.kernels.test_packed_codes import check_pack

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(HERE == "cuda", reason="a mutant that reads astray would take the CUDA context with it")

BF16, FP16 = torch.bfloat16, torch.float16


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
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)


# -- what only compiled code shows ------------------------------------------------------------------------------------


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
    ("quantized_linear",): [
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)", exact_groups_check),
        ("columns that are not there", "mask=(first_column + columns < num_inputs)[:, None]", "mask=(columns >= 0)[:, None]", exact_groups_check),
        ("groups that are not there", "group = tl.minimum(group, num_inputs // GROUP - 1)", "group = group + 0", exact_groups_check),
        ("runs that are not there", "mask=(step * BLOCK_I + run * RUN < num_inputs)[None, :]", "mask=(run >= 0)[None, :]", exact_bytes_check),
    ],
    ("fp8_linear",): [
        ("tokens that are not there", "tl.minimum(offs_t, num_tokens - 1).to(tl.int64)", "offs_t.to(tl.int64)", exact_fp8_check),
        ("columns that are not there", "mask=(first + columns < num_inputs)[None, :], other=0)", "mask=(columns >= 0)[None, :], other=0)", exact_fp8_check),
        ("rows that are not there", "mask_rows = rows < num_rows", "mask_rows = rows >= 0", exact_tokens_check),
    ],
    ("linear_splits",): [
        ("elements that are not there", "mask = offs < numel", "mask = offs < numel + 16", compiled_sum_check),
    ],
}  # fmt: skip

test_mutants_of_compiled_code = noticing(COMPILED_MUTANTS, KERNELS, noticed_emulated, "sm_80")
