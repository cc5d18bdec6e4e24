"""Planted bugs in the element-wise kernels; the checks that the kernels pass must notice each."""

import pytest
import torch

from tests.kernels.planting import noticing
from tests.kernels.test_rmsnorm_residual import check_rmsnorm
from tests.kernels.test_rope_kv_write import check_rope_kv_write
from tests.kernels.test_silu_mul import check_silu_mul

pytest.importorskip("triton", reason="not run here: no triton")


def rope_check(module):
    check_rope_kv_write(module.rope_kv_write, (9, 3, 80, 16, 7), torch.float16)
    check_rope_kv_write(module.rope_kv_write, (9, 3, 80, 16, 7), torch.float32, "int8")
    check_rope_kv_write(module.rope_kv_write, (80, 40, 64, 16, 5), torch.float32, "none")


def rmsnorm_check(module):
    for dtype in (torch.float32, torch.float16):
        for has_residual in (True, False):
            check_rmsnorm(module.rmsnorm_residual, (19, 80), dtype, has_residual=has_residual)


def silu_check(module):
    check_silu_mul(module.silu_mul, (5, 63), torch.float32)
    check_silu_mul(module.silu_mul, (2, 1025), torch.float16)


MUTANTS = {
    ("rope_kv_write",): [
        ("slot 0 skipped", "if slot >= 0:", "if slot > 0:", rope_check),
        ("scale of the lower half", "tl.maximum(absmax_bits(low), absmax_bits(high))", "absmax_bits(low)", rope_check),
        ("padding heads of q", "(offs_q < H)[:, None]", "(offs_q < BLOCK_Q)[:, None]", rope_check),
        ("only the first q group", "NUM_Q_GROUPS: tl.constexpr = (H + BLOCK_Q - 1) // BLOCK_Q", "NUM_Q_GROUPS: tl.constexpr = 1", rope_check),
        ("q strides for k", "k_ptr + token * k_token_stride", "k_ptr + token * q_head_stride", rope_check),
        ("padding lanes written", "mask_d = offs_d < HALF", "mask_d = offs_d < BLOCK_D", rope_check),
    ],
    ("rmsnorm_residual",): [
        ("eps forgotten", "tl.rsqrt(mean_square + eps)", "tl.rsqrt(tl.maximum(mean_square, 1e-30))", rmsnorm_check),
        ("sum not rounded", "(h.to(tl.float32) + residual.to(tl.float32)).to(h.dtype)", "(h.to(tl.float32) + residual.to(tl.float32))", rmsnorm_check),
        ("x stride for the residual", "rows[:, None] * residual_row_stride", "rows[:, None] * x_row_stride", rmsnorm_check),
        ("last row dropped", "(rows < num_rows)", "(rows < num_rows - 1)", rmsnorm_check),
    ],
    ("silu_mul",): [
        ("sigmoid of minus gate", "tl.where(gate >= 0, 1.0, decay)", "tl.where(gate < 0, 1.0, decay)", silu_check),
        ("packed input assumed", "row * gate_up_row_stride", "row * (2 * WIDTH)", silu_check),
        ("tail dropped", "cdiv(width, block)", "width // block", silu_check),
    ],
}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
