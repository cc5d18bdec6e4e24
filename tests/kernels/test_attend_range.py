"""What decode and prefill share and their own tests do not reach."""

import pytest
import torch

from tests.kernels.cases import HERE
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
    assert [kernel_kv_format("fp8_e4m3", g) for g in ("interpreter", "cdna", "ampere")] == ["fp8_e4m3"] * 3
    assert [kernel_kv_format("fp8_e4m3", g) for g in ("ada", "hopper")] == ["fp8_e4m3_hardware"] * 2
    assert kernel_kv_format("int8", "hopper") == "int8"
    assert kernel_kv_format("none", "hopper") == "none"


def test_padded_head_dim():
    assert [padded_head_dim(d) for d in (8, 64, 80, 96, 128, 256)] == [16, 64, 128, 128, 128, 256]
