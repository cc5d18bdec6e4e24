"""Two codes at a time: every code, queries of any size, and who reads caches so."""

import functools

import pytest
import torch

from tests.kernels.cases import HERE
from tests.kernels.planting import noticing
from twophase_kernels import code_pairs
from twophase_kernels._triton import tl, triton

pytest.importorskip("triton", reason="not run here: no triton")

# How codes can be taken apart here; the instructions of 'packed' and 'hardware' are the GPU's.
WAYS = ["plain"] if HERE == "cpu" else ["plain", "packed", "hardware"]


@triton.jit
def _decode(codes_ptr, even_ptr, odd_ptr, decode: tl.constexpr, FORMAT: tl.constexpr, WAY: tl.constexpr):
    offs = tl.arange(0, 128)
    even, odd = decode(tl.load(codes_ptr.to(tl.pointer_type(tl.int16)) + offs), FORMAT, WAY)
    tl.store(even_ptr + offs, even)
    tl.store(odd_ptr + offs, odd)


def check_codes(module, kv_format, way="plain"):
    codes = torch.arange(256, dtype=torch.uint8, device=HERE)
    codes = codes.roll(77)  # so that even and odd columns hold low and high codes both
    if kv_format == "fp8_e4m3":
        codes = torch.where(codes & 0x7F == 0x7F, 0, codes)  # NaN: caches with NaN have a NaN scale as well
    even, odd = (torch.empty(128, dtype=torch.float16, device=HERE) for _ in "eo")
    _decode[(1,)](codes, even, odd, module.decode_pairs, kv_format, way)
    unit = 256 if way == "packed" and kv_format == "fp8_e4m3" else 1
    want = codes.view(torch.int8 if kv_format == "int8" else torch.float8_e4m3fn).half()
    assert torch.equal(unit * even, want[0::2])
    assert torch.equal(unit * odd, want[1::2])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
def test_every_code_is_exact(kv_format, way):
    if way == "hardware" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8 instructions")
    check_codes(code_pairs, kv_format, way)


@triton.jit
def _to_fp16(q_ptr, out_ptr, inverse_ptr, to_fp16: tl.constexpr):
    offs = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    q, inverse = to_fp16(tl.load(q_ptr + offs))
    tl.store(out_ptr + offs, q)
    tl.store(inverse_ptr, inverse)


def run_to_fp16(module, q):
    out, inverse = torch.empty(16, 32, dtype=torch.float16, device=HERE), torch.empty(1, device=HERE)
    _to_fp16[(1,)](q.to(HERE), out, inverse, module.to_fp16)
    return out.cpu(), inverse.cpu()


def check_to_fp16(module, size):
    """Numbers of bf16's 8 bits come through exactly, whatever their size, and the largest uses fp16's range."""
    rng = torch.Generator().manual_seed(0)
    q = (torch.randn(16, 32, generator=rng) * size).bfloat16()
    out, inverse = run_to_fp16(module, q)
    assert torch.equal(out.double() * inverse.double(), q.double())
    assert 2**14 <= out.abs().max() < 2**15


@pytest.mark.parametrize("exponent", [-100, 0, 30, 120])
def test_queries_of_any_size(exponent):
    check_to_fp16(code_pairs, 2.0**exponent)


def test_small_queries_beside_a_large_one():
    """Exact down to 2^-28 of the largest; below, the error is at most 2^-39 of it."""
    q = torch.full((16, 32), 1.5 * 2.0**-28)
    q[0, 0], q[1] = 1.0, 0.7 * 2.0**-30
    out, inverse = run_to_fp16(code_pairs, q)
    back = out.double() * inverse.double()
    assert torch.equal(back[2:], q[2:].double())
    assert (back - q.double()).abs().max() <= 2.0**-39


def test_queries_without_a_size():
    """Zeros stay zeros, fp16 stays fp16; NaN and infinity are seen, not hidden by a factor of 0."""
    out, inverse = run_to_fp16(code_pairs, torch.zeros(16, 32))
    assert (out == 0).all()
    assert inverse > 0
    out, inverse = run_to_fp16(code_pairs, torch.full((16, 32), 2.0**-24).half())
    assert (out == 2.0**-24).all()
    assert inverse == 1
    for bad in (float("nan"), float("inf")):
        q = torch.ones(16, 32)
        q[3, 5] = bad
        out, inverse = run_to_fp16(code_pairs, q)
        assert not (out[3, 5].float() * inverse).isfinite()


MUTANTS = {("code_pairs",): [
    ("signed maximum", "& MAGNITUDE_MASK", "", functools.partial(check_to_fp16, size=-1.0)),
]}  # fmt: skip

on_a_cpu = pytest.mark.skipif(HERE == "cuda", reason="a mutant that reads astray would take the CUDA context with it")
test_mutants_are_killed = on_a_cpu(noticing(MUTANTS))
