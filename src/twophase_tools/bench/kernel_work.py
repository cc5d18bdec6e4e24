"""Lower bounds on a kernel's work: the bytes it must move and the floating-point operations it must do.

Counted from shapes, a function per kernel, so that a measured time can be read as a share of the machine's peak.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Work(NamedTuple):
    """Least bytes to and from device memory, and multiply and add counted as two operations."""

    num_bytes: int
    num_flops: int


def rope_kv_write_work(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int, cache_itemsize: int
) -> Work:
    """q, K and V in and out; a row of cos and of sin, a position and a slot per token; a fp32 scale per row of K and V
    if the cache is quantised (1 byte). 3 flops an element."""
    q_bytes = num_heads * head_dim * 2 * itemsize
    row_bytes = head_dim * (itemsize + cache_itemsize) + (4 if cache_itemsize == 1 else 0)
    angle_bytes = 2 * (head_dim // 2) * 4 + 2 * 8
    num_bytes = num_tokens * (q_bytes + 2 * num_kv_heads * row_bytes + angle_bytes)
    return Work(num_bytes, 3 * num_tokens * (num_heads + num_kv_heads) * head_dim)


def rmsnorm_residual_work(num_rows: int, width: int, itemsize: int) -> Work:
    """x and the residual in once, y and the sum out once, the weight once in all; 5 flops an element."""
    return Work(4 * num_rows * width * itemsize + width * itemsize, 5 * num_rows * width)


def silu_mul_work(num_rows: int, width: int, itemsize: int) -> Work:
    """gate and up in, the product out. Flops count exp2 as one: 7 an element."""
    return Work(3 * num_rows * width * itemsize, 7 * num_rows * width)


def attention_work(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
    kv_itemsize: int,
    kv_scale_itemsize: int = 0,
) -> Work:
    """The last query_lens[s] tokens of sequence s attend to its seq_lens[s] tokens, causally.

    K and V of every key once (and their scales), q in and out once. Q.K and P.V of visible pairs. Partial results are
    left out: they belong to how the work was split, not to the work.
    """
    pairs = [n * (length - n) + n * (n + 1) // 2 for n, length in zip(query_lens, seq_lens, strict=True)]
    kv_bytes = sum(seq_lens) * num_kv_heads * 2 * (head_dim * kv_itemsize + kv_scale_itemsize)
    q_bytes = sum(query_lens) * num_heads * head_dim * 2 * itemsize
    return Work(kv_bytes + q_bytes, sum(pairs) * num_heads * 4 * head_dim)


def quantized_linear_work(
    num_tokens: int, num_inputs: int, num_outputs: int, bits: int, itemsize: int, num_scales: int
) -> Work:
    """Each code once, fp32 scales and minima (`num_scales` in all), x in and y out once."""
    weight_bytes = num_outputs * num_inputs * bits // 8 + 4 * num_scales
    x_bytes = num_tokens * (num_inputs + num_outputs) * itemsize
    return Work(weight_bytes + x_bytes, 2 * num_tokens * num_inputs * num_outputs)


def fp8_linear_work(num_tokens: int, num_inputs: int, num_outputs: int, out_itemsize: int) -> Work:
    """Codes of both sides and their fp32 scales once, y out once. Quantising x is work of its own."""
    num_bytes = (num_tokens + num_outputs) * (num_inputs + 4) + num_tokens * num_outputs * out_itemsize
    return Work(num_bytes, 2 * num_tokens * num_inputs * num_outputs)


def quantise_tokens_work(num_tokens: int, num_inputs: int, itemsize: int) -> Work:
    """x in, a byte for each number out, and a fp32 scale per token; a comparison and a product per number."""
    return Work(num_tokens * (num_inputs * (itemsize + 1) + 4), 2 * num_tokens * num_inputs)
