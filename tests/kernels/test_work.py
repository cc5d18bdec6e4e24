"""Bytes and operations counted by hand for small shapes."""

from twophase_tools.bench.kernel_work import (
    attention_work,
    fp8_linear_work,
    quantise_tokens_work,
    quantized_linear_work,
    rmsnorm_residual_work,
    rope_kv_write_work,
    silu_mul_work,
)


def test_rows():
    """One token, 2 query heads and 1 KV head of 4 in fp32: q 2*2*4*4, cos and sin 2*2*4, K and V 2*2*4*4, 2 indices."""
    assert rope_kv_write_work(1, 2, 1, 4, 4, 4) == (64 + 16 + 64 + 16, 3 * 3 * 4)
    # 2 tokens in fp16, a cache of bytes with a scale of 4: K and V 2 * 2*1*(4*2 + 4 + 4).
    assert rope_kv_write_work(2, 2, 1, 4, 2, 1).num_bytes == 2 * (32 + 16 + 32 + 16)
    assert rmsnorm_residual_work(3, 8, 2) == (4 * 3 * 8 * 2 + 16, 5 * 24)
    assert silu_mul_work(3, 8, 2) == (3 * 3 * 8 * 2, 7 * 24)


def test_attention():
    # One sequence of 100 tokens, 8/2/64, bf16: K and V 100*2*64*2*2 = 51,200 B, q and out 8*64*2*2 = 2,048 B.
    assert attention_work([1], [100], 8, 2, 64, 2, 2) == (53_248, 100 * 8 * 4 * 64)
    # int8 with scales: 100*2*2*(64 + 4) B.
    assert attention_work([1], [100], 8, 2, 64, 2, 1, 4).num_bytes == 100 * 2 * 2 * 68 + 2_048
    # 3 tokens after 10 cached: 13 keys of 2*64*2*2 = 512 B; q and out 3*2,048 B. Pairs: 11 + 12 + 13 = 36.
    assert attention_work([3], [13], 8, 2, 64, 2, 2) == (13 * 512 + 6_144, 36 * 8 * 4 * 64)


def test_linear():
    # 3 tokens, 64 inputs, 10 outputs, bf16. 4 bits: 320 B of codes, 2 groups of 32 with minima 2*2*10*4 B, x 384, y 60 B.
    assert quantized_linear_work(3, 64, 10, 4, 2, num_scales=2 * 2 * 10) == (320 + 160 + 384 + 60, 2 * 3 * 640)
    assert quantized_linear_work(3, 64, 10, 8, 2, num_scales=10) == (640 + 40 + 384 + 60, 2 * 3 * 640)
    # fp8: 640 B of weights, 192 B of x, 13 scales of 4 B.
    assert fp8_linear_work(3, 64, 10, out_itemsize=2) == (640 + 192 + 52 + 60, 2 * 3 * 640)
    assert quantise_tokens_work(3, 64, itemsize=2) == (384 + 192 + 12, 2 * 3 * 64)
