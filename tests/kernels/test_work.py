"""Bytes and operations counted by hand for small shapes."""

import pytest

from twophase_tools.kernels import work
from twophase_tools.kernels.work import decode_work, visible_keys

BYTES = [
    # 2 tokens, 3 heads, D 64 in fp16: K and V are 2*2*3*64*2 bytes, in and out; and 2 slots of 8 bytes.
    (work.kv_write_work(2, 3, 64, 2, 2), 2 * (2 * 2 * 3 * 64 * 2) + 16),
    (work.kv_write_work(2, 3, 64, 2, 1), 2 * 2 * 3 * (64 * 2 + 64 + 4) + 16),
    # One token, 2 query heads and 1 KV head of 4 in fp32: q 2*2*4*4, cos and sin 2*2*4, K and V 2*2*4*4, 2 indices.
    (work.rope_kv_write_work(1, 2, 1, 4, 4, 4), 64 + 16 + 64 + 16),
    (work.rmsnorm_residual_work(3, 8, 2), 4 * 3 * 8 * 2 + 16),
    (work.rmsnorm_residual_work(3, 8, 2, has_residual=False), 2 * 3 * 8 * 2 + 16),
    (work.silu_mul_work(3, 8, 2), 3 * 3 * 8 * 2),
]
BOTH = [
    # One sequence of 100 tokens, 8/2/64, bf16: K and V 100*2*64*2*2 = 51,200 B, q and out 8*64*2*2 = 2,048 B.
    (decode_work([100], 8, 2, 64, itemsize=2, kv_itemsize=2), (53_248, 100 * 8 * 4 * 64)),
    # int8 with scales, 24 + 4 visible of 100: 28*2*2*(64 + 4) B.
    (
        decode_work([100, 0], 8, 2, 64, 2, kv_itemsize=1, kv_scale_itemsize=4, window=24, num_sinks=4),
        (28 * 2 * 2 * 68 + 2 * 2_048, 28 * 8 * 4 * 64),
    ),
    # 3 tokens after 10 cached: 13 keys of 2*64*2*2 = 512 B; q and out 3*8*64*2*2 = 6,144 B. Pairs: 11 + 12 + 13 = 36.
    (work.prefill_work([3], [13], 8, 2, 64, itemsize=2, kv_itemsize=2), (13 * 512 + 6_144, 36 * 8 * 4 * 64)),
    # A window of 4 and 1 sink: each token sees 5 keys; together keys 0 and 7..12.
    (
        work.prefill_work([3, 0], [13, 9], 8, 2, 64, itemsize=2, kv_itemsize=2, window=4, num_sinks=1),
        (7 * 512 + 6_144, 15 * 8 * 4 * 64),
    ),
    # 6 rows, 4 splits of 64 fp32 and an LSE read twice; 64 bf16 written.
    (work.merge_work(6, 4, 64, out_itemsize=2), (6 * (4 * (256 + 8) + 128), 6 * 4 * 128)),
    # 3 tokens, 64 inputs, 10 outputs, bf16. 4 bits: 320 B of codes, 2 groups of 32 with minima 2*2*10*4 B, x 384, y 60 B.
    (work.quantized_linear_work(3, 64, 10, 4, 2, num_scales=2 * 2 * 10), (320 + 160 + 384 + 60, 2 * 3 * 640)),
    (work.quantized_linear_work(3, 64, 10, 8, 2, num_scales=10), (640 + 40 + 384 + 60, 2 * 3 * 640)),
    # fp8: 640 B of weights, 192 B of x, 13 scales of 4 B.
    (work.fp8_linear_work(3, 64, 10, out_itemsize=2), (640 + 192 + 52 + 60, 2 * 3 * 640)),
    (work.quantise_tokens_work(3, 64, itemsize=2), (384 + 192 + 12, 2 * 3 * 64)),
]


@pytest.mark.parametrize(("counted", "by_hand"), BOTH + [(counted, (num, counted[1])) for counted, num in BYTES])
def test_counts(counted, by_hand):
    assert counted == by_hand


def test_intensity_and_visible_keys():
    assert BOTH[0][0].intensity == pytest.approx(3.846, abs=1e-3)
    assert work.rope_kv_write_work(1, 2, 1, 4, 4, 4).num_flops == 3 * 3 * 4
    assert [visible_keys(n, 24, 4) for n in (1, 24, 26, 28, 100)] == [1, 24, 26, 28, 28]
