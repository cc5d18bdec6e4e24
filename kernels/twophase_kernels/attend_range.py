"""The loop that decode and prefill share: keys [lo, hi) of one sequence, folded into a running softmax of query rows.

                         keys [lo, hi), found through the block table, a tile of BLOCK_N at a time -->

                        lo                                                              hi
     BLOCK_M rows:      +------------+------------+------------+------------+----------+
     some tokens times  |            |            |            |            |          |   from hi on nothing
     the query heads    | folded in  |  at work   |  K, V on   |  K, V on   |          |   is loaded
     of one KV head     |            |            |  their way |  their way |          |
                        +------------+------------+------------+------------+----------+
       in registers:       state        scores      in shared memory,          their page ids are
                                                    num_stages - 1 buffers     loaded a tile earlier

Online softmax (arXiv:1805.02867; FlashAttention-2, arXiv:2307.08691, algorithm 1) in base 2. For a row of scores s_j
seen so far, to base 2, the state is

    row_max = max_j s_j      row_sum = sum_j 2^(s_j - row_max)      acc = sum_j 2^(s_j - row_max) v_j

(row_max = -inf: nothing seen yet). A new tile rescales the old row_sum and acc by 2^(old row_max - new row_max). In the
end out = acc / row_sum and LSE = row_max + log2(row_sum), which is all that a later merge needs. Base 2 because `exp2`
is one instruction, and log2(e) disappears into the score's scale.

K and V are quantised per token and head: k_j = k_scale_j * data_j. So k_scale multiplies a column of scores, v_scale a
column of weights, and the matrix products run on the bare data. Where these take fp16, weight * v_scale is rounded to
it, and v_scale may be anything: fp16 would run out of range. So there row_max is the largest score_j + log2(v_scale_j),
approximately: the largest of those products is about 1, whatever the scales; out and LSE do not depend on row_max. How
    decode reads a quantised cache two codes at a time (PAIRS): `code_pairs`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twophase_kernels._triton import next_power_of_2, tl, triton
from twophase_kernels.code_pairs import decode_pairs
from twophase_kernels.gpu import Generation
from twophase_kernels.quant import KVFormat, decode, dequantise_reference, kv_format_of

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one program is laid out.

    Attributes:
        block_m: Query rows (tokens x heads of a group); at least 16, the smallest matrix instruction.
        block_n: Keys per step of the loop.
        num_warps: Warps that share the tile.
        num_stages: Triton's pipeline depth; n stages keep n - 1 tiles of K and of V in shared memory.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class Queries(NamedTuple):
    """The rows of a program, each a query head of a token."""

    q: Any  # a tuple: [BLOCK_M, BLOCK_D]; with PAIRS its even and its odd columns
    positions: Any  # int32 [BLOCK_M]: a row sees keys up to its own position
    qk_scale: Any  # score scale * log2(e)


class PagedKeys(NamedTuple):
    """Where the keys and values of one sequence and one KV head are."""

    table_ptr: Any  # int32 [W], the sequence's row of the block tables
    k_ptr: Any  # [N, H_KV, PAGE, D], offset to the KV head
    v_ptr: Any  # likewise
    k_scale_ptr: Any  # fp32 [N, H_KV, PAGE], offset to the KV head; None unless quantised
    v_scale_ptr: Any  # likewise


class KeyLayout(NamedTuple):
    """How keys and values lie there and in a tile: constants all."""

    H_KV: tl.constexpr
    PAGE: tl.constexpr
    D: tl.constexpr
    BLOCK_D: tl.constexpr
    BLOCK_N: tl.constexpr
    KV_FORMAT: tl.constexpr
    PAIRS: tl.constexpr  # 'no', or how two codes at a time are decoded, see `code_pairs`


class SoftmaxState(NamedTuple):
    """The running softmax state of each row."""

    row_max: Any  # fp32 [BLOCK_M]
    row_sum: Any  # fp32 [BLOCK_M]
    acc: Any  # fp32, a tuple of tiles like `Queries.q`


def kernel_kv_format(kv_format: KVFormat, generation: Generation) -> str:
    """The kernels' argument KV_FORMAT: uses the GPU's instructions for fp8, if there are any.

    They more than halve the instructions of decode's loop (counted in sm_90 code); decoding in software, an H200 would
    spend more time on them than on the memory.
    """
    return "fp8_e4m3_hardware" if kv_format == "fp8_e4m3" and generation in ("ada", "hopper") else kv_format


def padded_head_dim(head_dim: int) -> int:
    """Columns of a tile: `tl.arange` requires a power of two, `tl.dot` at least 16."""
    return max(16, next_power_of_2(head_dim))


@triton.jit
def keys_of_head(kv_head, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, layout: tl.constexpr):
    """`PagedKeys` of one KV head, from pointers to the first one's."""
    head_rows = kv_head * layout.PAGE
    k_ptr += head_rows * layout.D
    v_ptr += head_rows * layout.D
    if layout.KV_FORMAT != "none":
        k_scale_ptr += head_rows
        v_scale_ptr += head_rows
    if layout.PAIRS != "no":
        k_ptr = k_ptr.to(tl.pointer_type(tl.int16))
        v_ptr = v_ptr.to(tl.pointer_type(tl.int16))
    return PagedKeys(table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr)


@triton.jit
def load_page_ids(table_ptr, positions, end, PAGE: tl.constexpr):
    """Page of each position, int32; page 0, whose address is valid, from `end` on."""
    return tl.load(table_ptr + positions // PAGE, mask=positions < end, other=0)


@triton.jit
def load_rows(ptr, slots, in_range, layout: tl.constexpr, MASKED: tl.constexpr):
    """The rows of K or V in `slots`, [BLOCK_N, BLOCK_D]; zeros where out of range and from column D on.

    Columns are pairs of codes where these are read so.
    """
    D: tl.constexpr = layout.D if layout.PAIRS == "no" else layout.D // 2
    BLOCK_D: tl.constexpr = layout.BLOCK_D if layout.PAIRS == "no" else layout.BLOCK_D // 2
    offs_d = tl.arange(0, BLOCK_D)
    ptrs = ptr + (slots * D)[:, None] + offs_d[None, :]
    if MASKED or BLOCK_D > D:
        mask = (offs_d < D)[None, :]
        if MASKED:
            mask &= in_range[:, None]
        rows = tl.load(ptrs, mask=mask, other=0)
    else:
        rows = tl.load(ptrs)
    return rows


@triton.jit
def decode_as(data, dtype: tl.constexpr, KV_FORMAT: tl.constexpr):
    """Cache data as loaded -> numbers of `dtype`, still to be multiplied by their scale; exact in every float type."""
    if KV_FORMAT == "fp8_e4m3_hardware":
        return data.to(tl.float8e4nv, bitcast=True).to(dtype)
    else:  # noqa: RET505  (an early return would not keep Triton from compiling the rest)
        return decode(data, KV_FORMAT).to(dtype)


@triton.jit
def load_tiles(ptr, slots, in_range, layout: tl.constexpr, MASKED: tl.constexpr, dtype: tl.constexpr):
    """The rows of K or V in `slots` as numbers: all columns, or with PAIRS the even and the odd ones."""
    rows = load_rows(ptr, slots, in_range, layout, MASKED)
    if layout.PAIRS == "no":
        return (decode_as(rows, dtype, layout.KV_FORMAT),)
    else:  # noqa: RET505
        return decode_pairs(rows, layout.KV_FORMAT, layout.PAIRS)


@triton.jit
def load_scales(ptr, slots, in_range, layout: tl.constexpr):
    """Scales of K or V in `slots`, fp32 [BLOCK_N]."""
    scales = tl.load(ptr + slots, mask=in_range, other=0.0)
    if layout.KV_FORMAT == "fp8_e4m3" and layout.PAIRS == "packed":
        scales *= 256.0  # see E4M3_PAIRS
    return scales


@triton.jit
def about_log2(x):
    """log2 of positive fp32, at most 0.09 too small: the exponent, and the mantissa for the rest. At least -64."""
    # Rows of zeros have scales near 2^-108: without a floor the row_sum of a very long run of them would overflow.
    return tl.maximum(x.to(tl.int32, bitcast=True).to(tl.float32) * (1.0 / 2**23) - 127.0, -64.0)


@triton.jit
def product(a, b, layout: tl.constexpr):
    """a [BLOCK_M, columns] times b [BLOCK_N, columns], fp32 [BLOCK_M, BLOCK_N]; both in one tile, or in two."""
    result = tl.dot(a[0], tl.trans(b[0]), input_precision="ieee")
    if layout.PAIRS != "no":
        result = tl.dot(a[1], tl.trans(b[1]), result)
    return result


@triton.jit
def add_product(acc, rescale, p, v, layout: tl.constexpr):
    """acc * rescale + p v, tile by tile."""
    first = tl.dot(p, v[0], acc[0] * rescale[:, None], input_precision="ieee")
    if layout.PAIRS == "no":
        return (first,)
    else:  # noqa: RET505
        return first, tl.dot(p, v[1], acc[1] * rescale[:, None])


@triton.jit
def is_visible(positions, row_positions, WINDOW: tl.constexpr, NUM_SINKS: tl.constexpr):
    """The mask [rows, keys]: a row sees keys up to its own position, in its window or among the sinks."""
    visible = positions[None, :] <= row_positions[:, None]
    if WINDOW > 0:
        in_window = positions[None, :] > row_positions[:, None] - WINDOW
        visible &= in_window | (positions < NUM_SINKS)[None, :]
    return visible


@triton.jit
def start_softmax(BLOCK_M: tl.constexpr, layout: tl.constexpr):
    """The state of rows that have seen no key."""
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if layout.PAIRS == "no":
        return SoftmaxState(row_max, row_sum, (tl.zeros([BLOCK_M, layout.BLOCK_D], tl.float32),))
    else:  # noqa: RET505
        half = tl.zeros([BLOCK_M, layout.BLOCK_D // 2], tl.float32)
        return SoftmaxState(row_max, row_sum, (half, half))


@triton.jit
def finish_softmax(state, layout: tl.constexpr):
    """(out [BLOCK_M, BLOCK_D], LSE base 2). A row that saw no key gives 0 and -inf, not 0 / 0."""
    sum_safe = tl.where(state.row_sum == 0, 1.0, state.row_sum)
    acc = state.acc[0] if layout.PAIRS == "no" else tl.interleave(state.acc[0], state.acc[1])
    return acc / sum_safe[:, None], state.row_max + tl.log2(sum_safe)


@triton.jit
def attend_range(
    queries,  # Queries
    keys,  # PagedKeys, and how they lie:
    layout: tl.constexpr,  # KeyLayout
    state,  # SoftmaxState of the keys so far
    lo,
    hi,
    WINDOW: tl.constexpr = 0,  # keys that a row sees, up to its own; 0: all of them
    NUM_SINKS: tl.constexpr = 0,  # and the sequence's first keys, for any window
    MASKED: tl.constexpr = True,  # False promises that every row sees every key, and that BLOCK_N divides hi - lo
):
    """The state after keys [lo, hi)."""
    q, row_positions, qk_scale = queries
    table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr = keys
    row_max, row_sum, acc = state
    PAGE: tl.constexpr = layout.PAGE
    BLOCK_N: tl.constexpr = layout.BLOCK_N
    KV_FORMAT: tl.constexpr = layout.KV_FORMAT
    offs_tile = tl.arange(0, BLOCK_N)
    # A tile's page ids are loaded one step ahead and carried. Loaded in the same step as K and V, they would make
    # those loads indirect, and the software pipeliner would keep a single tile in flight at any number of stages.
    page_ids = load_page_ids(table_ptr, lo + offs_tile, hi, PAGE)
    for start in tl.range(lo, hi, BLOCK_N):
        positions = start + offs_tile
        next_page_ids = load_page_ids(table_ptr, positions + BLOCK_N, hi, PAGE)
        in_range = positions < hi
        # int64: a cache may hold more than 2^31 elements. The strides are constants, so the compiler sees that every
        # row starts at a multiple of 16 bytes and loads it 16 bytes at a time.
        slots = page_ids.to(tl.int64) * (layout.H_KV * PAGE) + positions % PAGE
        # Slots out of range may hold anything, NaN too, and 0 * NaN is NaN: a mask after the product is too late.
        k = load_tiles(k_ptr, slots, in_range, layout, MASKED, q[0].dtype)
        scores = product(q, k, layout)
        if KV_FORMAT != "none":
            scores *= load_scales(k_scale_ptr, slots, in_range, layout)[None, :]
        if MASKED:
            visible = is_visible(positions, row_positions, WINDOW, NUM_SINKS) & in_range[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        if KV_FORMAT != "none":
            v_scale = load_scales(v_scale_ptr, slots, in_range, layout)
        if KV_FORMAT != "none" and q[0].dtype == tl.float16:
            tile_max = tl.max(scores * qk_scale + about_log2(v_scale)[None, :], axis=1)
        else:
            # Scaled after it is taken, so that score * scale - maximum is one fused multiply-add.
            tile_max = tl.max(scores, axis=1) * qk_scale
        new_max = tl.maximum(row_max, tile_max)
        # A row that has still seen nothing has a maximum of -inf, and -inf - -inf is NaN.
        max_safe = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(scores * qk_scale - max_safe[:, None])
        rescale = tl.exp2(row_max - max_safe)
        row_sum = row_sum * rescale + tl.sum(p, axis=1)
        if KV_FORMAT != "none":
            p *= v_scale[None, :]
        v = load_tiles(v_ptr, slots, in_range, layout, MASKED, q[0].dtype)
        acc = add_product(acc, rescale, p.to(q[0].dtype), v, layout)
        row_max = new_max
        page_ids = next_page_ids
    return SoftmaxState(row_max, row_sum, acc)


def gather_pages_reference(
    cache: Tensor, scale: Tensor | None, kv_format: str, block_table: Tensor, seq_len: int
) -> Tensor:
    """[N, H_kv, page, D] -> the sequence's first `seq_len` tokens, dequantised: fp32 [seq_len, H_kv, D]."""
    page = cache.shape[2]
    positions = torch.arange(seq_len, device=cache.device)
    block = block_table[positions // page].long()
    offset = positions % page
    rows = cache[block, :, offset]
    return dequantise_reference(rows, None if scale is None else scale[block, :, offset], kv_format, torch.float32)


def paged_attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cu_query_lens: Tensor | None = None,
    *,
    scale: float,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    num_sinks: int = 0,
    out: Tensor | None = None,
    return_lse: bool = False,
    **tuning: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The reference for `paged_decode` and `paged_prefill`: sequence by sequence in plain torch.

    Args:
        out: Rows of q that belong to no sequence stay as they are here; by default they are 0.
        tuning: How a kernel shares out the work; it changes no result.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device)
    kv_format = kv_format_of(k_cache, k_scale, v_scale)
    bounds = range(len(seq_lens) + 1) if cu_query_lens is None else cu_query_lens.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        tokens = slice(bounds[s], bounds[s + 1])
        k = gather_pages_reference(k_cache, k_scale, kv_format, block_tables[s], seq_len)
        v = gather_pages_reference(v_cache, v_scale, kv_format, block_tables[s], seq_len)
        out[tokens], lse[tokens] = attention_reference(q[tokens], k, v, scale, window, num_sinks)
    return (out, lse) if return_lse else out


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, num_sinks: int
) -> tuple[Tensor, Tensor]:
    """Attention of one sequence's last L tokens, q [L, H, D], k and v fp32 [S, H_kv, D], in fp32.

    Returns (out [L, H, D], LSE base 2 [L, H]); a token that sees no key gets 0 and -inf.
    """
    seq_len, group = len(k), q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))  # query head h reads KV head h // G
    j = torch.arange(seq_len, device=q.device)
    i = seq_len - len(q) + torch.arange(len(q), device=q.device)[:, None]
    visible = j <= i
    if window is not None:
        visible &= (j > i - window) | (j < num_sinks)
    scores = torch.einsum("lhd,shd->lhs", q.float(), k) * (scale * LOG2_E)
    scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
    if seq_len == 0:
        return torch.zeros_like(q, dtype=torch.float32), scores.new_full(q.shape[:2], float("-inf"))
    p = torch.exp2(scores - scores.amax(-1, keepdim=True))
    out = torch.einsum("lhs,shd->lhd", p, v) / p.sum(-1, keepdim=True)
    return out, scores.amax(-1) + torch.log2(p.sum(-1))
