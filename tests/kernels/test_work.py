"""Bytes and operations counted by hand for small shapes."""

from twophase_tools.bench import kernel_work as work


def test_rows():
    """One token, 2 query heads and 1 KV head of 4 in fp32: q 2*2*4*4, cos and sin 2*2*4, K and V 2*2*4*4, 2 indices."""
    assert work.rope_kv_write_work(1, 2, 1, 4, 4, 4) == (64 + 16 + 64 + 16, 3 * 3 * 4)
    # 2 tokens in fp16, a cache of bytes with a scale of 4: K and V 2 * 2*1*(4*2 + 4 + 4).
    assert work.rope_kv_write_work(2, 2, 1, 4, 2, 1).num_bytes == 2 * (32 + 16 + 32 + 16)
    assert work.rmsnorm_residual_work(3, 8, 2) == (4 * 3 * 8 * 2 + 16, 5 * 24)
    assert work.silu_mul_work(3, 8, 2) == (3 * 3 * 8 * 2, 7 * 24)


def test_attention():
    # 3 tokens after 10 cached, 8/2/64, int8: 13 keys of 2*2*(64 + 4) B; q and out 3*2,048 B. Pairs: 11 + 12 + 13 = 36.
    assert work.attention_work([3], [13], 8, 2, 64, 2, 1, 4) == (13 * 272 + 6_144, 36 * 8 * 4 * 64)


def test_linear():
    # 3 tokens, 64 inputs, 10 outputs, bf16. 4 bits: 320 B of codes, 2 groups of 32 with minima 2*2*10*4 B, x 384, y 60 B.
    assert work.quantized_linear_work(3, 64, 10, 4, 2, num_scales=2 * 2 * 10) == (320 + 160 + 384 + 60, 2 * 3 * 640)
    # fp8: 640 B of weights, 192 B of x, 13 scales of 4 B.
    assert work.fp8_linear_work(3, 64, 10, out_itemsize=2) == (640 + 192 + 52 + 60, 2 * 3 * 640)
    assert work.quantise_tokens_work(3, 64, itemsize=2) == (384 + 192 + 12, 2 * 3 * 64)
