"""The rules that queries, a paged cache and its block tables obey, checked by the attention kernels' wrappers.

Only shapes, dtypes, strides and devices are checked, so nothing here waits for the device. That page ids lie in the
pool and lengths in the table is the cache manager's promise.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import FLOATS, check_devices, mode
from twophase_kernels.quant import KVFormat, kv_format_of

# Rows must start at multiples of this, or the compiler cannot use 16-byte loads (144 two-byte loads and spills instead
# of 32 asynchronous copies, when it was tried).
ROW_ALIGNMENT_BYTES = 16


def check_paged_inputs(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    scale: float,
    window: int | None,
    num_sinks: int,
) -> KVFormat:
    """The cache's format, or a ValueError that names the argument, the rule and the value.

    Raises:
        ValueError: An argument that the kernels cannot take.
        KernelsUnavailableError: No kernel can run here, or not with these dtypes.
    """
    kv_format = kv_format_of(k_cache, v_cache, k_scale, v_scale)
    _require_dtype("q", q, FLOATS)
    if kv_format == "none":
        _require_dtype("k_cache", k_cache, FLOATS)
    _require_dtype("block_tables", block_tables, (torch.int32,))
    _require_dtype("seq_lens", seq_lens, (torch.int32,))
    # Looked at first: the interpreter's answer about bfloat16 is clearer than any shape.
    mode(torch.bfloat16 if torch.bfloat16 in (q.dtype, k_cache.dtype) else q.dtype)
    check_devices(
        q=q, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale,
        block_tables=block_tables, seq_lens=seq_lens,
    )  # fmt: skip
    _check_cache(q, k_cache, v_cache)
    for name, tensor in (("k_scale", k_scale), ("v_scale", v_scale)):
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}.")
    if block_tables.shape != (len(seq_lens), block_tables.shape[-1]) or block_tables.shape[-1] % 16:
        raise ValueError(
            "block_tables must be [S, W] with one row per entry of seq_lens and W padded to a multiple of 16, got "
            f"{tuple(block_tables.shape)} for {len(seq_lens)} sequences."
        )
    if block_tables.stride(1) != 1 or not seq_lens.is_contiguous():
        raise ValueError(f"Rows of block_tables, and seq_lens, must be contiguous; got {block_tables.stride()}.")
    check_scalars(scale, window, num_sinks)
    return kv_format


def check_scalars(scale: float, window: int | None, num_sinks: int) -> None:
    if not scale > 0:
        # The kernel scales the row maximum after taking it, which needs a factor that keeps the order.
        raise ValueError(f"scale must be positive, as a rule 1/sqrt(D), got {scale}.")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 (the token itself) or None for no window, got {window}.")
    if num_sinks < 0:
        raise ValueError(f"num_sinks must be at least 0, got {num_sinks}.")


def _check_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    if q.ndim != 3 or k_cache.ndim != 4:
        raise ValueError(
            f"q must be [tokens, H, D] and the caches [N, H_kv, page, D], got {tuple(q.shape)} and "
            f"{tuple(k_cache.shape)}."
        )
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, page, cache_head_dim = k_cache.shape
    if head_dim != cache_head_dim:
        raise ValueError(f"q and the cache must have the same head size, got {head_dim} and {cache_head_dim}.")
    if num_heads % num_kv_heads:
        raise ValueError(f"H must be a multiple of H_kv, got {num_heads} query heads and {num_kv_heads} KV heads.")
    if page & (page - 1):
        raise ValueError(f"The page size must be a power of two, got {page}; 16 and 64 are usual.")
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        raise ValueError(f"The heads of a token of q must lie side by side, got strides {q.stride()} for D={head_dim}.")
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if head_dim * tensor.element_size() % ROW_ALIGNMENT_BYTES:
            raise ValueError(
                f"A row of {name} must be a multiple of {ROW_ALIGNMENT_BYTES} bytes, for 16-byte loads; D={head_dim} "
                f"in {tensor.dtype} is {head_dim * tensor.element_size()} bytes."
            )
        if name != "q" and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous [N, H_kv, page, D], got strides {tensor.stride()}.")


def _require_dtype(name: str, tensor: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in allowed:
        raise ValueError(f"{name} must be {' or '.join(str(dtype) for dtype in allowed)}, got {tensor.dtype}.")
