"""Paged attention in plain PyTorch: the default without CUDA, and the readable reference.

Decodes run batched, as FlashDecoding does it (split-KV, Dao et al. 2023): each sequence's context is cut into splits of
a fixed length, all splits of all sequences form one rectangular batch, and the partial results are merged by their
running maximum. A ragged batch thus needs neither a Python loop over sequences nor padding to the longest sequence.
A prefill chunk runs one fused `scaled_dot_product_attention`, and so does the only decode of a step.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionBatch, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase_kernels.quant import quantise_reference

# Keys per split. Measured for SmolLM2 on 2 cores at 32 sequences of 30-700 tokens: 64, 128 and 256 are within 15 % of
# each other, and the unsplit SDPA over gathered, padded pages takes 1.5 to 4 times as long.
SPLIT_KEYS = 128

# Decodes at most that one fused scaled_dot_product_attention serves. Measured likewise, one sequence of 128 keys, fused
# against a product, a softmax and a product: bf16 21 us and 109, fp32 21 and 51; 32 sequences 415 and 352. For bf16,
# whose small products are slow, this saved a seventh of a step with 4-bit weights; fp32 would gain 3 %, and keeps sums
# that do not depend on the number of sequences.
FUSED_SEQS = 8


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """B decodes cut into n splits of C keys each.

    Attributes:
        owner: The sequence each split belongs to, ascending.
        rows: Which rows of the cache, seen as [N * H_kv, block_size * D], hold the splits' pages.
        hidden: Keys the split's query must not see.
        stale: Which rows of the gathered [n * H_kv * C, D] come from slots that were never written. An earlier owner's
            values there may be NaN, and 0 * NaN is NaN, so their V is zeroed.
    """

    owner: Int[Tensor, "n"]
    rows: Int[Tensor, "R"]
    hidden: Bool[Tensor, "n 1 1 C"]
    stale: Int[Tensor, "Z"]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Consecutive tokens of one sequence: L queries, S gathered keys.

    Attributes:
        tokens: Their slice of the flat batch.
        rows: Which rows of the cache, seen as [N * H_kv, block_size * D], hold the keys' pages.
        keys: Which of the gathered keys they read: the last page has an unused tail.
        mask: None where plain causality is enough: for a fresh prompt, and for a single query that sees all `keys`.
    """

    tokens: slice
    rows: Int[Tensor, "R"]
    keys: slice
    mask: Bool[Tensor, "L S"] | None


@dataclass(slots=True)
class TorchPlan:
    """Shared by the layers of one step. `rotation` is filled by the first layer that needs it.

    Attributes:
        kept: Tokens whose K and V are written; None: all of them.
        splits: For the first `num_split` decodes; None: no decode is split.
        chunks: All other sequences of the step.
    """

    positions: Int[Tensor, "T"]
    kept: Int[Tensor, "K"] | None
    write_rows: Int[Tensor, "R"]
    num_split: int
    splits: SplitPlan | None
    chunks: list[ChunkPlan]
    rotation: tuple[Float[Tensor, "T 1 D"], Float[Tensor, "T 1 D"]] | None = None


class TorchBackend(AttentionBackend):
    """The torch backend, on any device. Softmax and sums are fp32; products have the model's dtype.

    Args:
        split_keys: Keys of a split.
        fused_seqs: Decodes at most that one fused call serves, if none needs more than one split; 0: none. A single
            decode of any length is served by one fused call.
    """

    name = "torch"

    def __init__(self, spec: AttentionSpec, block_size: int, split_keys: int = SPLIT_KEYS, fused_seqs: int = 0) -> None:
        self.spec = spec
        self.fused_seqs = fused_seqs
        self.block_size = block_size
        self.split_blocks = max(1, split_keys // block_size)

    # -- once per step ------------------------------------------------------------------------------------------------

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        slots = batch.slot_mapping.long()
        kept = None
        if bool((slots < 0).any()):
            kept = torch.nonzero(slots >= 0).squeeze(1)
            slots = slots[kept]
        block, offset = slots // self.block_size, slots % self.block_size
        heads = torch.arange(self.spec.num_kv_heads, device=slots.device)
        write_rows = ((block[:, None] * self.spec.num_kv_heads + heads) * self.block_size + offset[:, None]).reshape(-1)
        is_alone = batch.num_decodes == 1 and self.fused_seqs > 0 and not self.spec.num_sinks
        num_split = 0 if is_alone else batch.num_decodes
        splits = self._plan_splits(batch) if num_split else None
        ends = list(accumulate(batch.query_lens_host))
        chunks = [self._plan_chunk(batch, seq, ends[seq]) for seq in range(num_split, len(ends))]
        return TorchPlan(batch.positions.long(), kept, write_rows, num_split, splits, chunks)

    def _plan_splits(self, batch: AttentionBatch) -> SplitPlan:
        num_seqs, device = batch.num_decodes, batch.seq_lens.device
        seq_lens = batch.seq_lens[:num_seqs].long()
        width = self.split_blocks * self.block_size
        # A split is (owner, first key, end of its keys); a window starts the first split at the window's first page.
        window_start = torch.zeros_like(seq_lens)
        if self.spec.window is not None:
            window_start = (seq_lens - self.spec.window).clamp(min=0) // self.block_size * self.block_size
        num_splits = (seq_lens - window_start + width - 1).div(width, rounding_mode="floor").clamp(min=1)
        owner = torch.repeat_interleave(num_splits)
        first_of_owner = num_splits.cumsum(0) - num_splits
        split = torch.arange(owner.shape[0], device=device) - first_of_owner[owner]
        key_start = window_start[owner] + split * width
        key_end = seq_lens[owner]
        live_page = window_start[owner] // self.block_size
        if self.spec.window is not None and self.spec.num_sinks:
            sink_end = window_start.clamp(max=self.spec.num_sinks)
            for begin in range(0, self.spec.num_sinks, width):
                owner = torch.cat([owner, torch.arange(num_seqs, device=device)])
                key_start = torch.cat([key_start, torch.full_like(sink_end, begin)])
                key_end = torch.cat([key_end, sink_end])
                live_page = torch.cat([live_page, torch.zeros_like(sink_end)])
        positions = key_start[:, None] + torch.arange(width, device=device)
        visible = (positions < key_end[:, None]) & self._in_window(seq_lens[owner, None] - 1, positions)
        # A page past a split's end may be missing or freed. The split then reads the first page of the window or of the
        # sinks: that page is there, and usually all its slots are written.
        page = key_start[:, None] // self.block_size + torch.arange(self.split_blocks, device=device)
        page = torch.where(page * self.block_size < key_end[:, None], page, live_page[:, None])
        rows = self._cache_rows(batch.block_tables[owner[:, None], page])
        written = page[:, :, None] * self.block_size + torch.arange(self.block_size, device=device)
        stale = (written.view(positions.shape) >= seq_lens[owner, None])[:, None].expand(-1, self.spec.num_kv_heads, -1)
        return SplitPlan(owner, rows, ~visible[:, None, None, :], torch.nonzero(stale.flatten()).squeeze(1))

    def _plan_chunk(self, batch: AttentionBatch, seq: int, end: int) -> ChunkPlan:
        window, num_sinks, size = self.spec.window, self.spec.num_sinks, self.block_size
        num_queries, seq_len = batch.query_lens_host[seq], batch.seq_lens_host[seq]
        first_query = seq_len - num_queries
        first_key = 0 if window is None else max(0, first_query + 1 - window)
        first_page, num_pages = first_key // size, max(1, -(-seq_len // size))  # a padding row sees nothing of its page
        sink_pages = min(first_page, -(-num_sinks // size))
        num_keys = seq_len - (first_page - sink_pages) * size
        table, tokens = batch.block_tables[seq], slice(end - num_queries, end)
        rows = self._cache_rows(torch.cat([table[:sink_pages], table[first_page:num_pages]])[None])
        if num_queries == 1 and not num_sinks:
            return ChunkPlan(tokens, rows, slice(first_key % size, num_keys), None)
        mask = None
        if first_query or (window is not None and seq_len > window):
            positions = torch.arange(seq_len, device=rows.device)
            keys = torch.cat([positions[: sink_pages * size], positions[first_page * size :]])
            queries = positions[first_query:, None]
            mask = (keys <= queries) & self._in_window(queries, keys)
        return ChunkPlan(tokens, rows, slice(num_keys), mask)

    def _in_window(self, queries: Int[Tensor, "a 1"], keys: Int[Tensor, "*b"]) -> Bool[Tensor, "..."]:
        if self.spec.window is None:
            return torch.ones_like(keys, dtype=torch.bool)
        return (keys > queries - self.spec.window) | (keys < self.spec.num_sinks)

    def _cache_rows(self, blocks: Int[Tensor, "n W"]) -> Int[Tensor, "R"]:
        """Block ids to rows of the cache seen as [N * H_kv, block_size * D]: [n, H_kv, W], flattened."""
        heads = torch.arange(self.spec.num_kv_heads, device=blocks.device)
        return (blocks.long()[:, None, :] * self.spec.num_kv_heads + heads[None, :, None]).reshape(-1)

    # -- per layer ----------------------------------------------------------------------------------------------------

    def write(
        self,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T H_kv D"],
        v: Float[Tensor, "T H_kv D"],
        cos: Float[Tensor, "P D/2"],
        sin: Float[Tensor, "P D/2"],
        kv: LayerKV,
        plan: TorchPlan,
    ) -> Float[Tensor, "T H D"]:
        if plan.rotation is None:
            cos, sin = cos[plan.positions].to(q.dtype), sin[plan.positions].to(q.dtype)
            plan.rotation = torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]
        k = rotate(k, *plan.rotation)
        if plan.kept is not None:
            k, v = k[plan.kept], v[plan.kept]
        write_rows(kv.k, kv.k_scale, plan.write_rows, k)
        write_rows(kv.v, kv.v_scale, plan.write_rows, v)
        return rotate(q, *plan.rotation)

    def attend(self, q: Float[Tensor, "T H D"], kv: LayerKV, plan: TorchPlan) -> Float[Tensor, "T H D"]:
        if plan.splits is not None and not plan.chunks:
            return self._attend_splits(q, kv, plan.splits)
        if plan.splits is None and len(plan.chunks) == 1:
            return self._attend_chunk(q, kv, plan.chunks[0])
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if plan.splits is not None:
            out[: plan.num_split] = self._attend_splits(q[: plan.num_split], kv, plan.splits)
        for chunk in plan.chunks:
            out[chunk.tokens] = self._attend_chunk(q[chunk.tokens], kv, chunk)
        return out

    def _attend_splits(self, q: Float[Tensor, "B H D"], kv: LayerKV, plan: SplitPlan) -> Float[Tensor, "B H D"]:
        num_seqs, num_kv_heads, head_dim = q.shape[0], self.spec.num_kv_heads, self.spec.head_dim
        group = self.spec.num_heads // num_kv_heads
        n, width = plan.owner.shape[0], plan.hidden.shape[-1]
        k, k_scale = gather_rows(kv.k, kv.k_scale, plan.rows, q.dtype)
        v, v_scale = gather_rows(kv.v, kv.v_scale, plan.rows, q.dtype)
        v.view(-1, head_dim).index_fill_(0, plan.stale, 0)
        if v_scale is not None:
            v_scale.view(-1).index_fill_(0, plan.stale, 0)
        if n == num_seqs <= self.fused_seqs and k_scale is None:
            k.view(-1, head_dim).index_fill_(0, plan.stale, 0)  # the fused call adds its mask: NaN would stay
            keys, values = (each.view(n, num_kv_heads, width, head_dim) for each in (k, v))
            queries = q.reshape(n, num_kv_heads, group, head_dim)
            fused = F.scaled_dot_product_attention(queries, keys, values, attn_mask=~plan.hidden, scale=self.spec.scale)
            return fused.reshape(q.shape)

        q_splits = q.reshape(num_seqs, num_kv_heads * group, head_dim)[plan.owner]
        scores = torch.bmm(
            q_splits.view(n * num_kv_heads, group, head_dim), k.view(-1, width, head_dim).transpose(1, 2)
        )
        scores = scores.view(n, num_kv_heads, group, width).float()
        if k_scale is not None:
            scores *= k_scale.view(n, num_kv_heads, 1, width)
        scores = scores.mul_(self.spec.scale).masked_fill_(plan.hidden, -math.inf)

        # Merge by the sequence's maximum over all its splits; an unused split (-inf everywhere) then adds exact zeros.
        maximum = scores.amax(-1)
        if n > num_seqs:
            owner = plan.owner[:, None, None].expand_as(maximum)
            start = maximum.new_full((num_seqs, num_kv_heads, group), -math.inf)
            maximum = start.scatter_reduce(0, owner, maximum, "amax")[plan.owner]
        p = scores.sub_(maximum.clamp(min=torch.finfo(torch.float32).min)[..., None]).exp_()
        total = p.sum(-1)
        if v_scale is not None:
            p *= v_scale.view(n, num_kv_heads, 1, width)
        out = torch.bmm(p.to(q.dtype).view(-1, group, width), v.view(-1, width, head_dim)).view(n, -1, group, head_dim)
        if n > num_seqs:
            out = out.new_zeros((num_seqs, *out.shape[1:]), dtype=torch.float32).index_add_(0, plan.owner, out.float())
            total = total.new_zeros((num_seqs, *total.shape[1:])).index_add_(0, plan.owner, total)
        out = out / total.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
        return out.to(q.dtype).view(q.shape)

    def _attend_chunk(self, q: Float[Tensor, "L H D"], kv: LayerKV, plan: ChunkPlan) -> Float[Tensor, "L H D"]:
        num_kv_heads, head_dim, scale = self.spec.num_kv_heads, self.spec.head_dim, self.spec.scale
        k, v = (
            gathered_keys(data, data_scale, plan.rows, num_kv_heads, q.dtype)[None, :, plan.keys]
            for data, data_scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
        )
        if q.shape[0] == 1 and plan.mask is None:
            # A group's heads as if they were queries of one head: no K or V is copied for each of them.
            queries = q.reshape(1, num_kv_heads, -1, head_dim)
            return F.scaled_dot_product_attention(queries, k, v, scale=scale).reshape(q.shape)
        how = {"attn_mask": plan.mask, "is_causal": plan.mask is None, "enable_gqa": q.shape[1] != num_kv_heads}
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, scale=scale, **how)
        return out[0].transpose(0, 1)


def rotate(
    x: Float[Tensor, "T H D"], cos: Float[Tensor, "T 1 D"], signed_sin: Float[Tensor, "T 1 D"]
) -> Float[Tensor, "T H D"]:
    """RoPE on half-split pairs: (x1 cos - x2 sin, x2 cos + x1 sin), with `signed_sin` = (-sin, sin)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def write_rows(data: Tensor, scale: Tensor | None, rows: Int[Tensor, "R"], x: Float[Tensor, "T H_kv D"]) -> None:
    """Write K or V of some tokens into rows of the cache seen as [N * H_kv * block_size, D], quantising if need be."""
    x = x.reshape(-1, x.shape[-1])
    if scale is not None:
        x, row_scale = quantise_reference(x, "int8" if data.dtype == torch.int8 else "fp8_e4m3")
        scale.view(-1).index_copy_(0, rows, row_scale)
    data.view(-1, data.shape[-1]).index_copy_(0, rows, x.to(data.dtype))


def gather_rows(
    data: Tensor, scale: Tensor | None, rows: Int[Tensor, "R"], dtype: torch.dtype
) -> tuple[Tensor, Float[Tensor, "R block_size"] | None]:
    """Pages [R, block_size * D] as `dtype`, and their scales; a quantised page times its scale is the real value."""
    num_blocks, num_kv_heads, block_size, head_dim = data.shape
    pages = data.view(num_blocks * num_kv_heads, block_size * head_dim).index_select(0, rows)
    if scale is None:
        return pages.to(dtype), None
    if data.dtype == torch.uint8:
        pages = pages.view(torch.float8_e4m3fn)
    return pages.to(dtype), scale.view(num_blocks * num_kv_heads, block_size).index_select(0, rows)


def gathered_keys(
    data: Tensor, scale: Tensor | None, rows: Int[Tensor, "R"], num_kv_heads: int, dtype: torch.dtype
) -> Float[Tensor, "H_kv S D"]:
    """One sequence's K or V in order, dequantised."""
    head_dim = data.shape[-1]
    pages, page_scale = gather_rows(data, scale, rows, dtype)
    keys = pages.view(num_kv_heads, -1, head_dim)
    if page_scale is not None:
        keys = keys * page_scale.view(num_kv_heads, -1, 1).to(dtype)
    return keys
