"""Write the K and V of new tokens into their pages, quantising on the way if the cache is quantised.

A token's slot is block * page + offset. Only memory moves: each element is read once and written once, a token's
heads land `page * D` elements apart, and the loads and stores of a whole token fit in one program.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import FLOATS, cdiv, check_devices, mode, next_power_of_2, tl, triton
from twophase_kernels.quant import (
    KVFormat,
    absmax_bits,
    encode,
    kv_format_of,
    quantise_reference,
    row_scales,
)


# A graph's persistent buffers are sliced to the batch at any offset: alignment must not make another binary.
@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr"])
def kv_write_kernel(
    k_ptr,  # [T, H_KV, D], head_dim contiguous
    v_ptr,  # like k_ptr, with strides of its own
    k_cache_ptr,  # [N, H_KV, PAGE, D]; int8, or uint8 for e4m3 bits, when quantised
    v_cache_ptr,  # like k_cache_ptr, same strides
    slot_mapping_ptr,  # int64 [T]; negative: nothing is written
    k_scale_ptr,  # fp32 [N, H_KV, PAGE]; None unless quantised
    v_scale_ptr,  # like k_scale_ptr, same strides
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    cache_block_stride,
    cache_head_stride,
    cache_slot_stride,
    scale_block_stride,
    scale_head_stride,
    scale_slot_stride,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program: K and V of one token, for BLOCK_H of its heads (all of them, as a rule)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D)
    mask_h = offs_h < H_KV
    mask = mask_h[:, None] & (offs_d < D)[None, :]
    # int64, as slot is: a cache may hold more than 2^31 elements.
    data_rows = (slot // PAGE) * cache_block_stride + offs_h * cache_head_stride + (slot % PAGE) * cache_slot_stride
    data_offs = data_rows[:, None] + offs_d[None, :]
    k_offs = token * k_token_stride + offs_h[:, None] * k_head_stride + offs_d[None, :]
    v_offs = token * v_token_stride + offs_h[:, None] * v_head_stride + offs_d[None, :]
    k = tl.load(k_ptr + k_offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + v_offs, mask=mask, other=0.0)
    if KV_FORMAT == "none":
        tl.store(k_cache_ptr + data_offs, k, mask=mask)
        tl.store(v_cache_ptr + data_offs, v, mask=mask)
    else:
        k, v = k.to(tl.float32), v.to(tl.float32)
        k_scale, k_factor = row_scales(absmax_bits(k), KV_FORMAT)
        v_scale, v_factor = row_scales(absmax_bits(v), KV_FORMAT)
        tl.store(k_cache_ptr + data_offs, encode(k * k_factor[:, None], KV_FORMAT), mask=mask)
        tl.store(v_cache_ptr + data_offs, encode(v * v_factor[:, None], KV_FORMAT), mask=mask)
        scale_offs = (
            (slot // PAGE) * scale_block_stride + offs_h * scale_head_stride + (slot % PAGE) * scale_slot_stride
        )
        tl.store(k_scale_ptr + scale_offs, k_scale, mask=mask_h)
        tl.store(v_scale_ptr + scale_offs, v_scale, mask=mask_h)


def kv_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Store token t's K and V at slot_mapping[t]. Does not wait for the device; allocates nothing.

    Args:
        k, v: [T, H_kv, D], last dimension contiguous; views of a fused qkv tensor will do.
        k_cache, v_cache: [N, H_kv, page, D], mutated; int8, or uint8 to hold e4m3 bits, make it quantise. Last
            dimension contiguous, strides the same for both.
        slot_mapping: int64 [T], contiguous: block * page + offset, each slot at most once; negative: skip the token.
        k_scale, v_scale: fp32 [N, H_kv, page], mutated; for quantised caches only.

    Raises:
        ValueError: An argument that breaks one of these rules. (Slots past the end of the cache go unnoticed: looking
            at them would wait for the device.)
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    kv_format = check_new_kv(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    block_h, block_d, num_warps = head_tile(num_kv_heads, head_dim)
    scale_strides = (0, 0, 0) if k_scale is None else k_scale.stride()
    kv_write_kernel[(num_tokens, cdiv(num_kv_heads, block_h))](
        k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale,
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *scale_strides,
        H_KV=num_kv_heads, D=head_dim, PAGE=k_cache.shape[2], KV_FORMAT=kv_format,
        BLOCK_H=block_h, BLOCK_D=block_d, num_warps=num_warps,
    )  # fmt: skip


def head_tile(num_heads: int, width: int, max_elements: int = 4096) -> tuple[int, int, int]:
    """(heads, padded width, warps) of a program's tile: all heads of a token unless that is too many elements.

    A warp for every 512 elements gives each thread one or two 16-byte loads of 2-byte elements.
    """
    block_d = next_power_of_2(width)
    block_h = min(next_power_of_2(num_heads), max(1, max_elements // block_d))
    return block_h, block_d, min(8, max(1, block_h * block_d // 512))


def check_new_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> KVFormat:
    """The cache's format, or an error that names the argument, the rule and the value (see `kv_write`)."""
    mode(torch.bfloat16 if torch.bfloat16 in (k.dtype, k_cache.dtype) else None)
    check_devices(
        k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping, k_scale=k_scale, v_scale=v_scale
    )
    kv_format = kv_format_of(k_cache, v_cache, k_scale, v_scale)
    if k.ndim != 3 or k.shape != v.shape or k.dtype not in FLOATS or v.dtype != k.dtype:
        raise ValueError(
            "k and v must be [T, H_kv, D] of one shape and one of float32, float16, bfloat16, got "
            f"{k.dtype} {tuple(k.shape)} and {v.dtype} {tuple(v.shape)}."
        )
    if k_cache.ndim != 4 or (k_cache.shape[1], k_cache.shape[3]) != (k.shape[1], k.shape[2]):
        raise ValueError(
            f"k_cache must be [N, H_kv, page, D] with k's H_kv and D ({k.shape[1]}, {k.shape[2]}), "
            f"got {tuple(k_cache.shape)}."
        )
    if kv_format == "none" and k_cache.dtype not in FLOATS:
        raise ValueError(f"k_cache must be float32, float16, bfloat16, int8 or uint8 (e4m3), got {k_cache.dtype}.")
    if slot_mapping.dtype != torch.int64 or slot_mapping.shape != k.shape[:1] or not slot_mapping.is_contiguous():
        raise ValueError(
            f"slot_mapping must be int64 [{len(k)}] (one per token) and contiguous, got {slot_mapping.dtype} "
            f"{tuple(slot_mapping.shape)} with strides {slot_mapping.stride()}."
        )
    for name, tensor in (("k", k), ("v", v), ("k_cache", k_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"The last dimension of {name} must be contiguous, got strides {tensor.stride()}.")
    for name, first, second in (("cache", k_cache, v_cache), ("scale", k_scale, v_scale)):
        if first is not None and second is not None and first.stride() != second.stride():
            raise ValueError(
                f"k_{name} and v_{name} must have the same strides, got {first.stride()} and {second.stride()}."
            )
    return kv_format


def kv_write_reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Reference for `kv_write` in plain torch."""
    kv_format = kv_format_of(k_cache, v_cache, k_scale, v_scale)
    tokens = (slot_mapping >= 0).nonzero().flatten()
    page = k_cache.shape[2]
    block, offset = slot_mapping[tokens] // page, slot_mapping[tokens] % page
    for new, cache, cache_scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        data, scale = quantise_reference(new[tokens], kv_format)
        cache[block, :, offset] = data.to(cache.dtype)
        if cache_scale is not None:
            cache_scale[block, :, offset] = scale
