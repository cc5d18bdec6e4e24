"""Lower bounds on a kernel's work: the bytes it must move and the floating-point operations it must do.

Counted from shapes, a function per kernel, so that a measured time can be read as a share of the machine's peak.
"""

from typing import NamedTuple


class Work(NamedTuple):
    """Least bytes to and from device memory, and multiply and add counted as two operations."""

    num_bytes: int
    num_flops: int

    @property
    def intensity(self) -> float:
        """Operations per byte; below the machine's own ratio, memory is the limit."""
        return self.num_flops / self.num_bytes


def kv_write_work(num_tokens: int, num_kv_heads: int, head_dim: int, itemsize: int, cache_itemsize: int) -> Work:
    """K and V in once and out once, the slots, and a fp32 scale per row if the cache is quantised (1 byte)."""
    scale_bytes = 4 if cache_itemsize == 1 else 0
    row_bytes = head_dim * (itemsize + cache_itemsize) + scale_bytes
    return Work(num_tokens * (2 * num_kv_heads * row_bytes + 8), 0)


def rope_kv_write_work(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int, cache_itemsize: int
) -> Work:
    """q in and out, K and V as for `kv_write`, a row of cos and of sin and a position per token; 3 flops an element."""
    q_bytes = num_tokens * num_heads * head_dim * 2 * itemsize
    angle_bytes = num_tokens * (2 * (head_dim // 2) * 4 + 8)
    kv_bytes = kv_write_work(num_tokens, num_kv_heads, head_dim, itemsize, cache_itemsize).num_bytes
    return Work(q_bytes + angle_bytes + kv_bytes, 3 * num_tokens * (num_heads + num_kv_heads) * head_dim)


def rmsnorm_residual_work(num_rows: int, width: int, itemsize: int, has_residual: bool = True) -> Work:
    """x (and the residual) in once, y (and the sum) out once, the weight once in all; 4 or 5 flops an element."""
    num_passes, num_flops = (4, 5) if has_residual else (2, 4)
    return Work(num_passes * num_rows * width * itemsize + width * itemsize, num_flops * num_rows * width)


def silu_mul_work(num_rows: int, width: int, itemsize: int) -> Work:
    """gate and up in, the product out. Flops count exp2 as one: 7 an element."""
    return Work(3 * num_rows * width * itemsize, 7 * num_rows * width)


def decode_work(
    seq_lens: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
    kv_itemsize: int,
    kv_scale_itemsize: int = 0,
    window: int | None = None,
    num_sinks: int = 0,
) -> Work:
    """K and V of every visible key once (and their scales), q in and out once. Per key and query head: Q.K and P.V.

    Partial results are left out: they belong to how the work was split, not to the work.
    """
    num_keys = sum(visible_keys(n, window, num_sinks) for n in seq_lens)
    kv_bytes = num_keys * num_kv_heads * 2 * (head_dim * kv_itemsize + kv_scale_itemsize)
    q_bytes = len(seq_lens) * num_heads * head_dim * 2 * itemsize
    return Work(kv_bytes + q_bytes, num_keys * num_heads * 4 * head_dim)


def visible_keys(seq_len: int, window: int | None, num_sinks: int) -> int:
    """Keys that the last of `seq_len` tokens sees."""
    if window is None or window >= seq_len:
        return seq_len
    return window + min(num_sinks, seq_len - window)


def prefill_work(
    query_lens: list[int],
    seq_lens: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
    kv_itemsize: int,
    kv_scale_itemsize: int = 0,
    window: int | None = None,
    num_sinks: int = 0,
) -> Work:
    """K and V of every key that some token of its chunk sees, once; q in and out once. Q.K and P.V of visible pairs."""
    num_keys = num_pairs = 0
    for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
        context = seq_len - query_len
        num_pairs += sum(visible_keys(context + i + 1, window, num_sinks) for i in range(query_len))
        if query_len:
            num_keys += visible_keys(context + 1, window, num_sinks) + query_len - 1
    kv_bytes = num_keys * num_kv_heads * 2 * (head_dim * kv_itemsize + kv_scale_itemsize)
    q_bytes = sum(query_lens) * num_heads * head_dim * 2 * itemsize
    return Work(kv_bytes + q_bytes, num_pairs * num_heads * 4 * head_dim)


def merge_work(num_rows: int, num_splits: int, head_dim: int, out_itemsize: int) -> Work:
    """Reads every partial once, and the LSEs twice; writes the outputs. Per number: a multiply and an add."""
    num_bytes = num_rows * (num_splits * (4 * head_dim + 2 * 4) + head_dim * out_itemsize)
    return Work(num_bytes, num_rows * num_splits * 2 * head_dim)


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
