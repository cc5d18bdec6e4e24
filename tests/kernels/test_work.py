"""Bytes and operations of the benchmark's cases, counted by hand for small shapes."""

import torch

from twophase_tools.bench.kernel_cases import CaseTable, Sizes
from twophase_tools.bench.kernel_linears import Layer

CPU = torch.device("cpu")


def table(dtype, *sizes, **more):
    return CaseTable(Sizes(*sizes, **more), dtype, CPU)


def test_rows():
    """One token, 2 query heads and 1 KV head of 4 in fp32: q 2*2*4*4, cos and sin 2*2*4, K and V 2*2*4*4, 2 indices."""
    assert table(torch.float32, 2, 1, 4).rope_kv_write(1, "none").work == (64 + 16 + 64 + 16, 3 * 3 * 4)
    # 2 tokens in fp16, a cache of bytes with a scale of 4: K and V 2 * 2*1*(4*2 + 4 + 4).
    assert table(torch.float16, 2, 1, 4).rope_kv_write(2, "int8").work.num_bytes == 2 * (32 + 16 + 32 + 16)
    assert table(torch.float16, hidden=8).rmsnorm_residual(3).work == (4 * 3 * 8 * 2 + 16, 5 * 24)
    assert table(torch.float16, intermediate=8).silu_mul(3).work == (3 * 3 * 8 * 2, 7 * 24)


def test_attention():
    # 3 tokens after 10 cached, 8/2/64, int8: 13 keys of 2*2*(64 + 4) B; q and out 3*2,048 B. Pairs: 11 + 12 + 13 = 36.
    work = table(torch.float16, 8, 2, 64).attention(((3, 13),), "", "int8").work
    assert work == (13 * 272 + 6_144, 36 * 8 * 4 * 64)


def test_linear():
    """3 tokens, 64 inputs, 10 outputs, bf16: x 384 B, y 60 B."""
    int4, int8, fp8, tokens = (case.work for case in Layer(3, 10, 64, 32, torch.bfloat16, CPU).cases(1.0))
    assert int4 == (320 + 160 + 384 + 60, 2 * 3 * 640)  # 2 groups of 32, with minima 2*2*10*4 B
    assert int8 == (640 + 40 + 384 + 60, 2 * 3 * 640)
    assert fp8 == (640 + 192 + 52 + 60, 2 * 3 * 640)  # 192 B of x, 13 scales of 4 B
    assert tokens == (384 + 192 + 12, 2 * 3 * 64)
