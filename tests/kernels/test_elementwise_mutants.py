"""Planted bugs in the element-wise kernels; the checks that the kernels pass must notice each."""

import pytest
import torch

from tests.kernels.planting import mutants_of
from tests.kernels.test_rmsnorm_residual import check_rmsnorm
from tests.kernels.test_rope_kv_write import check_rope_kv_write
from tests.kernels.test_silu_mul import check_silu_mul
from tests.mutation import KillTable

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
    ("rope_kv_write", rope_check): [
        ("rotated backwards", "low * cos - high * sin, high * cos + low", "low * cos + high * sin, high * cos - low"),
        ("position off by one", "tl.load(positions_ptr + token) * HALF", "(tl.load(positions_ptr + token) - 1) * HALF"),
        ("v rotated", "k_low, k_high = _rotate(k_low, k_high, cos, sin)", "v_low, v_high = _rotate(v_low, v_high, cos, sin)"),
        ("q not rotated", "        low, high = _rotate(low, high, cos, sin)\n", ""),
        ("negative slot written", "if slot >= 0:", "if slot >= -1000000:"),
        ("slot 0 skipped", "if slot >= 0:", "if slot > 0:"),
        ("upper half not stored", "        tl.store(q_row_ptr + q_offs + HALF, high, mask=mask_q)\n", ""),
        ("k and v caches swapped", "_store_halves(v_low, v_high, v_cache_ptr", "_store_halves(v_low, v_high, k_cache_ptr"),
        ("scale of the lower half", "tl.maximum(absmax_bits(low), absmax_bits(high))", "absmax_bits(low)"),
        ("upper half not scaled", "encode(high * factor[:, None]", "encode(high"),
        ("scale not written", "        tl.store(scale_ptr + scale_offs, scale, mask=mask_h)\n", ""),
        ("padding heads of q", "(offs_q < H)[:, None]", "(offs_q < BLOCK_Q)[:, None]"),
        ("padding heads of k", "mask_h = offs_h < H_KV", "mask_h = offs_h < BLOCK_KV"),
        ("only the first q group", "NUM_Q_GROUPS: tl.constexpr = (H + BLOCK_Q - 1) // BLOCK_Q", "NUM_Q_GROUPS: tl.constexpr = 1"),
        ("only the first kv group", "+ cdiv(num_kv_heads, block_kv))", "+ 1)"),
        ("q strides for k", "k_ptr + token * k_token_stride", "k_ptr + token * q_head_stride"),
        ("k stride for v", "v_ptr + token * v_token_stride", "v_ptr + token * k_head_stride"),
        ("next slot", "tl.load(slot_mapping_ptr + token)", "tl.load(slot_mapping_ptr + token) + 1"),
        ("offset left out", "offs_h * cache_head_stride + offset * cache_slot_stride", "offs_h * cache_head_stride"),
        ("block left out", "rows = block * cache_block_stride + ", "rows = "),
        ("padding lanes written", "mask_d = offs_d < HALF", "mask_d = offs_d < BLOCK_D"),
        ("scale written as factor", "scale, factor = row_scales", "factor, scale = row_scales"),
        ("scale of the wrong slot", "offs_h * scale_head_stride + offset * scale_slot_stride", "offs_h * scale_head_stride"),
        ("last token dropped", "grid = (num_tokens,", "grid = (num_tokens - 1,"),
    ],
    ("rmsnorm_residual", rmsnorm_check): [
        ("eps forgotten", "tl.rsqrt(mean_square + eps)", "tl.rsqrt(tl.maximum(mean_square, 1e-30))"),
        ("sum for mean", "tl.sum(h * h, axis=1) / N", "tl.sum(h * h, axis=1)"),
        ("weight left out", "(y * weight[None, :])", "(y)"),
        ("residual not added", "(h.to(tl.float32) + residual.to(tl.float32))", "(h.to(tl.float32))"),
        ("residual not stored", "        tl.store(residual_out_ptr + out_offs, h, mask=mask)\n", ""),
        ("residual returned unchanged", "    return y, residual_out\n", "    return y, x if residual is None else residual\n"),
        ("sum not rounded", "(h.to(tl.float32) + residual.to(tl.float32)).to(h.dtype)", "(h.to(tl.float32) + residual.to(tl.float32))"),
        ("in place of the residual", "residual_out = x if residual is None else torch.empty_like(y)", "residual_out = x if residual is None else residual"),
        ("x stride for the residual", "rows[:, None] * residual_row_stride", "rows[:, None] * x_row_stride"),
        ("last row dropped", "(rows < num_rows)", "(rows < num_rows - 1)"),
    ],
    ("silu_mul", silu_check): [
        ("gate and up swapped", "    decay =", "    gate, up = up, gate\n    decay ="),
        ("gate for up", "(gate * sigmoid * up)", "(gate * sigmoid * gate)"),
        ("natural exponent left out", "tl.exp2(-tl.abs(gate) * LOG2_E)", "tl.exp2(-tl.abs(gate))"),
        ("sigmoid of minus gate", "tl.where(gate >= 0, 1.0, decay)", "tl.where(gate < 0, 1.0, decay)"),
        ("up from the wrong place", "row_ptr + WIDTH + offs", "row_ptr + BLOCK + offs"),
        ("packed input assumed", "row * gate_up_row_stride", "row * (2 * WIDTH)"),
        ("tail dropped", "cdiv(width, block)", "width // block"),
        ("last element dropped", "mask = offs < WIDTH", "mask = offs < WIDTH - 1"),
    ],
}  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("check", "mutant"), mutants_of(MUTANTS))
def test_mutants_are_killed(check, mutant):
    KillTable.record(mutant, check)
