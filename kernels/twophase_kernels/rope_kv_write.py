"""Rotate q and k by their positions and write k, v into their pages: the operations between the qkv projection and
attention in one launch instead of four.

Rotary embedding (RoPE, arXiv:2104.09864, eq. 34) in the half-split pairing of Llama checkpoints: with c, s = cos, sin
of position * theta_i, the pair (x[i], x[i + D/2]) becomes

    x[i] * c - x[i + D/2] * s,        x[i + D/2] * c + x[i] * s        for 0 <= i < D/2

so a row is handled as two halves, and both results come from the same two loads.
"""

import torch
from torch import Tensor

from twophase_kernels._triton import cdiv, next_power_of_2, tl, triton
from twophase_kernels.arguments import FLOATS, check_arguments
from twophase_kernels.quant import CACHE_DTYPES, absmax_bits, encode, kv_format_of, quantise_reference, row_scales


@triton.jit
def _load_halves(row_ptr, offs, mask, HALF: tl.constexpr):
    """[BLOCK_H, BLOCK_D] elements from D/2 on either side, in fp32."""
    low = tl.load(row_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(row_ptr + offs + HALF, mask=mask, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _rotate(low, high, cos, sin):
    """The formula at the top of this file; cos and sin are fp32 [1, BLOCK_D]."""
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _store_halves(
    low, high, cache_ptr, scale_ptr, offs, scale_offs, mask, mask_h, HALF: tl.constexpr, KV_FORMAT: tl.constexpr
):
    """Two halves of cache rows, quantised with one scale for both."""
    if KV_FORMAT == "none":
        tl.store(cache_ptr + offs, low, mask=mask)
        tl.store(cache_ptr + offs + HALF, high, mask=mask)
    else:
        scale, factor = row_scales(tl.maximum(absmax_bits(low), absmax_bits(high)), KV_FORMAT)
        tl.store(cache_ptr + offs, encode(low * factor[:, None], KV_FORMAT), mask=mask)
        tl.store(cache_ptr + offs + HALF, encode(high * factor[:, None], KV_FORMAT), mask=mask)
        tl.store(scale_ptr + scale_offs, scale, mask=mask_h)


# Buffers sliced to the batch start at any offset: alignment must not make another binary.
@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slot_mapping_ptr"])
def rope_kv_write_kernel(
    q_ptr,  # [T, H, D], rotated in place
    k_ptr,  # [T, H_KV, D]
    v_ptr,  # like k_ptr, with strides of its own
    cos_ptr,  # fp32 [positions, D/2], contiguous
    sin_ptr,  # like cos_ptr
    positions_ptr,  # int64 [T]
    slot_mapping_ptr,  # int64 [T]; negative: no K and V are written
    k_cache_ptr,  # [N, H_KV, PAGE, D]; int8, or uint8 for e4m3 bits, when quantised
    v_cache_ptr,  # like k_cache_ptr, same strides
    k_scale_ptr,  # fp32 [N, H_KV, PAGE]; None unless quantised
    v_scale_ptr,  # like k_scale_ptr, same strides
    q_token_stride,
    q_head_stride,
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
    H: tl.constexpr,
    H_KV: tl.constexpr,
    HALF: tl.constexpr,  # D/2
    PAGE: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    BLOCK_Q: tl.constexpr,  # query heads of a program
    BLOCK_KV: tl.constexpr,  # or its KV heads
    BLOCK_D: tl.constexpr,  # HALF, padded
):
    """One program: BLOCK_Q query heads of one token; or, in the last of its programs, BLOCK_KV of its KV heads."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    NUM_Q_GROUPS: tl.constexpr = (H + BLOCK_Q - 1) // BLOCK_Q
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HALF
    angle_offs = tl.load(positions_ptr + token) * HALF + offs_d
    cos = tl.load(cos_ptr + angle_offs, mask=mask_d, other=0.0)[None, :]
    sin = tl.load(sin_ptr + angle_offs, mask=mask_d, other=0.0)[None, :]
    if group < NUM_Q_GROUPS:
        offs_q = group * BLOCK_Q + tl.arange(0, BLOCK_Q)
        mask_q = (offs_q < H)[:, None] & mask_d[None, :]
        q_row_ptr = q_ptr + token * q_token_stride
        q_offs = offs_q[:, None] * q_head_stride + offs_d[None, :]
        low, high = _load_halves(q_row_ptr, q_offs, mask_q, HALF)
        low, high = _rotate(low, high, cos, sin)
        # A tile smaller than the program's threads is loaded by several: none may store before all have loaded.
        tl.debug_barrier()
        tl.store(q_row_ptr + q_offs, low, mask=mask_q)
        tl.store(q_row_ptr + q_offs + HALF, high, mask=mask_q)
    else:
        slot = tl.load(slot_mapping_ptr + token)
        if slot >= 0:
            offs_h = (group - NUM_Q_GROUPS) * BLOCK_KV + tl.arange(0, BLOCK_KV)
            mask_h = offs_h < H_KV
            mask = mask_h[:, None] & mask_d[None, :]
            block, offset = slot // PAGE, slot % PAGE  # int64: a cache may hold more than 2^31 elements
            rows = block * cache_block_stride + offs_h * cache_head_stride + offset * cache_slot_stride
            offs = rows[:, None] + offs_d[None, :]
            scale_offs = block * scale_block_stride + offs_h * scale_head_stride + offset * scale_slot_stride
            k_offs = offs_h[:, None] * k_head_stride + offs_d[None, :]
            v_offs = offs_h[:, None] * v_head_stride + offs_d[None, :]
            k_low, k_high = _load_halves(k_ptr + token * k_token_stride, k_offs, mask, HALF)
            v_low, v_high = _load_halves(v_ptr + token * v_token_stride, v_offs, mask, HALF)
            k_low, k_high = _rotate(k_low, k_high, cos, sin)
            _store_halves(k_low, k_high, k_cache_ptr, k_scale_ptr, offs, scale_offs, mask, mask_h, HALF, KV_FORMAT)
            _store_halves(v_low, v_high, v_cache_ptr, v_scale_ptr, offs, scale_offs, mask, mask_h, HALF, KV_FORMAT)


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Rotate q in place, and write the rotated k, and v, at their slots. Does not wait for the device.

    Args:
        q: [T, H, D], mutated; k, v: [T, H_kv, D], read only. Last dimension contiguous; views of one fused qkv tensor
            will do.
        cos, sin: fp32 [num_positions, D/2], contiguous; row p holds the angles of position p.
        positions: int64 [T], each below num_positions (not checked: a check would wait for the device).
        slot_mapping: int64 [T], contiguous: block * page + offset, each slot at most once (not checked either);
            negative: the token's K and V are not written.
        k_cache, v_cache: [N, H_kv, page, D], mutated; int8, or uint8 to hold e4m3 bits, make it quantise. Last
            dimension contiguous, strides the same for both.
        k_scale, v_scale: fp32 [N, H_kv, page], mutated; for quantised caches only.

    Returns:
        q itself.

    Raises:
        ValueError: An argument that breaks one of these rules.
        KernelsUnavailableError: No kernel can run here, or not in this dtype.
    """
    kv_format = kv_format_of(k_cache, k_scale, v_scale)
    cache, scales = "N H_kv page | D", "N H_kv page |"
    sizes = check_arguments(
        q=(q, "T H | D", FLOATS),
        k=(k, "T H_kv | D", q.dtype),
        v=(v, "T H_kv | D", q.dtype),
        cos=(cos, "positions D/2", torch.float32),
        sin=(sin, "positions D/2", torch.float32),
        positions=(positions, "T", torch.int64),
        slot_mapping=(slot_mapping, "T", torch.int64),
        k_cache=(k_cache, cache, CACHE_DTYPES),
        v_cache=(v_cache, cache, k_cache.dtype),
        k_scale=(k_scale, scales, torch.float32),
        v_scale=(v_scale, scales, torch.float32),
    )
    num_tokens, num_heads, num_kv_heads, half = (sizes[name] for name in ("T", "H", "H_kv", "D/2"))
    if 2 * half != sizes["D"]:
        raise ValueError(
            "Rotary embedding pairs the two halves of a head: D must be even, and cos and sin must have D/2 columns, "
            f"got D={sizes['D']} and {half} columns."
        )
    for name, k_part, v_part in (("cache", k_cache, v_cache), ("scale", k_scale, v_scale)):
        if k_part is not None and v_part is not None and k_part.stride() != v_part.stride():
            raise ValueError(
                f"k_{name} and v_{name} must have the same strides, got {k_part.stride()} and {v_part.stride()}."
            )
    if num_tokens == 0:
        return q
    # Two tiles, of q or of k and v, are held in fp32 at a time: half as many elements in each.
    block_q, block_d, num_warps = head_tile(num_heads, half, max_elements=2048)
    block_kv, _, _ = head_tile(num_kv_heads, half, max_elements=1024)
    scale_strides = (0, 0, 0) if k_scale is None else k_scale.stride()
    grid = (num_tokens, cdiv(num_heads, block_q) + cdiv(num_kv_heads, block_kv))
    rope_kv_write_kernel[grid](
        q, k, v, cos, sin, positions, slot_mapping, k_cache, v_cache, k_scale, v_scale,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *scale_strides,
        H=num_heads, H_KV=num_kv_heads, HALF=half, PAGE=k_cache.shape[2], KV_FORMAT=kv_format,
        BLOCK_Q=block_q, BLOCK_KV=block_kv, BLOCK_D=block_d, num_warps=num_warps,
    )  # fmt: skip
    return q


def head_tile(num_heads: int, width: int, max_elements: int) -> tuple[int, int, int]:
    """(heads, padded width, warps) of a program's tile: all heads of a token unless that is too many elements.

    A warp for every 512 elements gives each thread one or two 16-byte loads of 2-byte elements.
    """
    block_d = next_power_of_2(width)
    block_h = min(next_power_of_2(num_heads), max(1, max_elements // block_d))
    return block_h, block_d, min(8, max(1, block_h * block_d // 512))


def rope_kv_write_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Reference for `rope_kv_write` in plain torch. The rotated k stays fp32 until it is stored, as in the kernel."""
    kv_write_reference(rope_reference(k, cos, sin, positions), v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    return q.copy_(rope_reference(q, cos, sin, positions))


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """x [T, H, D] rotated, in fp32 and not in place."""
    low, high = x.float().chunk(2, dim=-1)
    c, s = cos[positions][:, None], sin[positions][:, None]
    return torch.cat([low * c - high * s, high * c + low * s], dim=-1)


def kv_write_reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """K and V as they are, at their slots, quantised if the cache is, in plain torch."""
    kv_format = kv_format_of(k_cache, k_scale, v_scale)
    tokens = (slot_mapping >= 0).nonzero().flatten()
    page = k_cache.shape[2]
    block, offset = slot_mapping[tokens] // page, slot_mapping[tokens] % page
    for new, cache, cache_scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        data, scale = quantise_reference(new[tokens], kv_format)
        cache[block, :, offset] = data.to(cache.dtype)
        if cache_scale is not None:
            cache_scale[block, :, offset] = scale
