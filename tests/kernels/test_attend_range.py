"""What decode and prefill share and their own tests do not reach."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.attention_grid import small_tiles
from tests.kernels.cases import HERE, attention_oracle, make_case
from twophase_kernels import paged_decode, paged_prefill
from twophase_kernels._triton import tl, triton
from twophase_kernels.attend_range import decode_as, kernel_kv_format, padded_head_dim

pytest.importorskip("triton", reason="not run here: no triton")


@triton.jit
def _decode(codes_ptr, out_ptr, KV_FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, decode_as(tl.load(codes_ptr + offs), out_ptr.dtype.element_ty, KV_FORMAT))


@pytest.mark.parametrize("kv_format", ["fp8_e4m3", "fp8_e4m3_hardware"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_e4m3_code_is_exact(kv_format, dtype):
    if HERE == "cuda" and kv_format.endswith("hardware") and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8 instructions")
    codes = torch.arange(256, dtype=torch.uint8, device=HERE)
    codes = torch.where(codes & 0x7F == 0x7F, 0, codes)  # NaN: caches with NaN have a NaN scale as well
    out = torch.empty(256, dtype=dtype, device=HERE)
    _decode[(1,)](codes, out, KV_FORMAT=kv_format, BLOCK=256)
    assert torch.equal(out, codes.view(torch.float8_e4m3fn).to(dtype))


def test_hardware_fp8_where_it_exists():
    assert [kernel_kv_format("fp8_e4m3", g) for g in ("cpu", "cdna", "ampere")] == ["fp8_e4m3"] * 3
    assert [kernel_kv_format("fp8_e4m3", g) for g in ("ada", "hopper")] == ["fp8_e4m3_hardware"] * 2
    assert kernel_kv_format("int8", "hopper") == "int8"
    assert kernel_kv_format("none", "hopper") == "none"


def check_small_values(module, kv_format, value_std):
    """fp16 queries over quantised values of any size: weights times their scales must not run out of fp16's bits."""
    case = make_case([33, 2], [3, 2], heads=(6, 2), kv_format=kv_format, dtype=torch.float16, device=HERE)
    dense = [(k, v * value_std) for k, v in case.dense]
    case = replace(case, v_scale=case.v_scale * value_std, dense=dense)
    options = {"scale": case.scale, **case.scales}
    want, _ = attention_oracle(case)
    if hasattr(module, "paged_prefill"):
        tiles = small_tiles(16, 32)
        got = module.paged_prefill(case.q, *case.cache, case.cu_query_lens, max_query_len=3, tiles=tiles, **options)
    else:
        last, want = [2, 4], want[[2, 4]]
        got = module.paged_decode(case.q[last], *case.cache, num_splits=1, tiles=small_tiles(16, 32), **options)
    error = ((got.double().cpu() - want).norm() / want.norm()).item()
    assert error < 1e-3, f"relative error {error:.1e}"  # weights and output are rounded to fp16, 4.9e-4 each


@pytest.mark.parametrize("value_std", [1e3, 1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("module", [paged_decode, paged_prefill])
def test_quantised_values_may_be_small(module, kv_format, value_std):
    check_small_values(module, kv_format, value_std)


def test_padded_head_dim():
    assert [padded_head_dim(d) for d in (8, 64, 80, 96, 128, 256)] == [16, 64, 128, 128, 128, 256]
