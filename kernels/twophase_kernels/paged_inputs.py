"""The rules that queries, a paged cache and its block tables obey: what the attention kernels' wrappers have in common.

Only shapes, dtypes, strides and devices are checked, so nothing here waits for the device. That page ids lie in the
pool and lengths in the table is the cache manager's promise.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from twophase_kernels.arguments import FLOATS, check_arguments
from twophase_kernels.quant import CACHE_DTYPES, KVFormat, kv_format_of

# Rows must start at multiples of this, or the compiler cannot use 16-byte loads (144 two-byte loads and spills instead
# of 32 asynchronous copies, when it was tried).
ROW_ALIGNMENT_BYTES = 16


class PagedInputs(NamedTuple):
    """The sizes of a call, and where its results go."""

    kv_format: KVFormat
    num_tokens: int
    num_seqs: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page: int
    out: Tensor  # [T, H, D]
    lse: Tensor | None  # fp32 [T, H]


def check_paged_inputs(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor | None,
    *,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    scale: float,
    window: int | None,
    num_sinks: int,
    out: Tensor | None,
    return_lse: bool,
) -> PagedInputs:
    """For arguments see `paged_decode`.

    Raises:
        ValueError: An argument that the kernels cannot take; names the argument, the rule and the value.
        KernelsUnavailableError: No kernel can run here, or not with these dtypes.
    """
    kv_format = kv_format_of(k_cache, k_scale, v_scale)
    sizes = check_arguments(
        {"S+1": seq_lens.numel() + 1},
        q=(q, "T | H D", FLOATS),
        k_cache=(k_cache, "N H_kv page D", CACHE_DTYPES),
        v_cache=(v_cache, "N H_kv page D", k_cache.dtype),
        k_scale=(k_scale, "N H_kv page", torch.float32),
        v_scale=(v_scale, "N H_kv page", torch.float32),
        seq_lens=(seq_lens, "S", torch.int32),
        block_tables=(block_tables, "S | W", torch.int32),
        cu_query_lens=(cu_query_lens, "S+1", torch.int32),
        out=(out, "T H D", q.dtype),
    )
    num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, page = (
        sizes[name] for name in ("T", "S", "H", "H_kv", "D", "page")
    )
    if num_heads % num_kv_heads:
        raise ValueError(f"H must be a multiple of H_kv, got {num_heads} query heads and {num_kv_heads} KV heads.")
    if page & (page - 1):
        raise ValueError(f"The page size must be a power of two, got {page}; 16 and 64 are usual.")
    if sizes["W"] % 16:
        raise ValueError(f"block_tables must be [S, W], W padded to a multiple of 16, got {list(block_tables.shape)}.")
    for name, tensor in (("q", q), ("k_cache", k_cache)):
        if head_dim * tensor.itemsize % ROW_ALIGNMENT_BYTES:
            raise ValueError(
                f"A row of {name} must be a multiple of {ROW_ALIGNMENT_BYTES} bytes, for 16-byte loads; D={head_dim} "
                f"in {tensor.dtype} is {head_dim * tensor.itemsize} bytes."
            )
    if not scale > 0:
        # The kernel scales the row maximum after taking it, which needs a factor that keeps the order.
        raise ValueError(f"scale must be positive, as a rule 1/sqrt(D), got {scale}.")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 (the token itself) or None for no window, got {window}.")
    if num_sinks < 0:
        raise ValueError(f"num_sinks must be at least 0, got {num_sinks}.")
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device) if return_lse else None
    return PagedInputs(kv_format, num_tokens, num_seqs, num_heads, num_kv_heads, head_dim, page, out, lse)
