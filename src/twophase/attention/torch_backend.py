"""Paged attention in plain PyTorch: the default without CUDA, and the readable reference.

Decodes run batched, as in FlashDecoding (split-KV, Dao et al. 2023): each sequence's visible pages are cut into splits
of a fixed length, all splits of all sequences form one rectangular batch, and partial results are merged by their
maximum, without padding to the longest. Each prefill chunk, and with `fused_seqs` the only decode of a step, runs one
fused `scaled_dot_product_attention`. A page is a block's K or V in one layer.
"""

import math
from collections.abc import Iterator, Sequence
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

# Most decodes for one fused scaled_dot_product_attention. On the same 2 cores, in bf16, one sequence of 128 keys takes
# 21 us fused and 109 as product, softmax and product (fp32: 21 and 51); 32 sequences take 415 and 352. In bf16, whose
# small products are slow, fusing saved a seventh of a step with 4-bit weights; fp32 would save 3 %, and is not fused
# (`make_backend`), so that its sums do not depend on the number of sequences.
FUSED_SEQS = 8


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """B decodes cut into n splits of C keys each.

    Attributes:
        owner: The sequence of each split, ascending.
        rows: Rows of the cache, seen as [N * H_kv, block_size * D], with the splits' pages.
        hidden: True for keys that the split's query must not see.
        stale: Rows of the gathered [n * H_kv * C, D] that lie beyond their sequence's end. An earlier owner may have
            left NaN there, and 0 * NaN is NaN, so their V is zeroed.
    """

    owner: Int[Tensor, "n"]
    rows: Int[Tensor, "R"]
    hidden: Bool[Tensor, "n 1 1 C"]
    stale: Int[Tensor, "Z"]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Consecutive tokens of one sequence: L queries, S gathered keys.

    Attributes:
        tokens: The chunk's slice of the flat batch.
        rows: As in `SplitPlan`.
        keys: The slice of the gathered keys that the queries may see: the last page has an unused tail.
        mask: True for visible keys. None for a new prompt (causal), and for a single query that sees all `keys`.
    """

    tokens: slice
    rows: Int[Tensor, "R"]
    keys: slice
    mask: Bool[Tensor, "L S"] | None


@dataclass(slots=True)
class TorchPlan:
    """Indices and masks of one step, shared by its layers.

    Attributes:
        kept: Tokens whose K and V are written; None: all of them.
        write_rows: The kept tokens' rows of the cache, seen as [N * H_kv * block_size, D].
        num_split, splits: The decodes that run as splits; 0 and None if no decode does.
        chunks: All other sequences of the step.
        rotation: cos and (-sin, sin) of the tokens' positions, set by the first layer.
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
        fused_seqs: Most decodes for one fused call, if each needs only one split; 0: none. With 1 or more, the only
            decode of a step is fused at any length, unless there are sinks.
    """

    name = "torch"

    def __init__(self, spec: AttentionSpec, block_size: int, split_keys: int = SPLIT_KEYS, fused_seqs: int = 0) -> None:
        self.spec = spec
        self.fused_seqs = fused_seqs
        self.block_size = block_size
        self.split_pages = max(1, split_keys // block_size)

    # -- once per step ------------------------------------------------------------------------------------------------

    def plan(self, batch: AttentionBatch) -> TorchPlan:
        slots, kept = batch.slot_mapping.long(), None
        if bool((slots < 0).any()):
            kept = torch.nonzero(slots >= 0).squeeze(1)
            slots = slots[kept]
        pages = self._cache_rows((slots // self.block_size)[:, None])[..., 0]
        write_rows = (pages * self.block_size + slots[:, None] % self.block_size).flatten()
        is_alone = batch.num_decodes == 1 <= self.fused_seqs and not self.spec.num_sinks
        num_split = 0 if is_alone else batch.num_decodes
        ends = list(accumulate(batch.query_lens_host))
        chunks = [self._plan_chunk(batch, seq, ends[seq]) for seq in range(num_split, len(ends))]
        splits = self._plan_splits(batch) if num_split else None
        return TorchPlan(batch.positions.long(), kept, write_rows, num_split, splits, chunks)

    def _plan_splits(self, batch: AttentionBatch) -> SplitPlan:
        pages_of = [self._visible_pages(length - 1, length) for length in batch.seq_lens_host[: batch.num_decodes]]
        width, device = self.split_pages, batch.seq_lens.device
        splits = [
            (seq, pages[i : i + width]) for seq, pages in enumerate(pages_of) for i in range(0, len(pages), width)
        ]
        owner = torch.tensor([seq for seq, _ in splits], device=device)
        # A short split is padded with its first page, whose repeated keys are hidden.
        pages = torch.tensor([[*part, *[part[0]] * (width - len(part))] for _, part in splits], device=device)
        num_keys = torch.tensor([len(part) * self.block_size for _, part in splits], device=device)
        seq_lens, positions = batch.seq_lens[owner, None].long(), self._positions(pages)
        is_split = torch.arange(positions.shape[1], device=device) < num_keys[:, None]
        visible = is_split & (positions < seq_lens) & self._in_window(seq_lens - 1, positions)
        stale = (positions >= seq_lens)[:, None].expand(-1, self.spec.num_kv_heads, -1)
        rows = self._cache_rows(batch.block_tables[owner[:, None], pages]).flatten()
        return SplitPlan(owner, rows, ~visible[:, None, None], torch.nonzero(stale.flatten()).squeeze(1))

    def _plan_chunk(self, batch: AttentionBatch, seq: int, end: int) -> ChunkPlan:
        num_queries, seq_len = batch.query_lens_host[seq], batch.seq_lens_host[seq]
        first_query = seq_len - num_queries
        visible = self._visible_pages(first_query, seq_len)
        pages = torch.tensor([visible], device=batch.seq_lens.device)
        rows = self._cache_rows(batch.block_tables[seq][pages]).flatten()
        tokens = slice(end - num_queries, end)
        num_keys = seq_len - (visible[-1] + 1 - len(visible)) * self.block_size
        if num_queries == 1 and not self.spec.num_sinks:
            first_key = self._first_key(first_query) % self.block_size
            return ChunkPlan(tokens, rows, slice(first_key, num_keys), None)
        mask = None
        if first_query or self._first_key(seq_len - 1):
            keys = self._positions(pages)[:, :num_keys]
            queries = torch.arange(first_query, seq_len, device=keys.device)[:, None]
            mask = (keys <= queries) & self._in_window(queries, keys)
        return ChunkPlan(tokens, rows, slice(num_keys), mask)

    def _first_key(self, query: int) -> int:
        """The first position that a query sees, sinks aside."""
        return 0 if self.spec.window is None else max(0, query + 1 - self.spec.window)

    def _visible_pages(self, first_query: int, seq_len: int) -> Sequence[int]:
        """Indices of pages that queries from `first_query` on see: the sinks' pages, then the window's."""
        num_pages = max(1, -(-seq_len // self.block_size))  # a padding row sees nothing of its page
        first_page = self._first_key(first_query) // self.block_size
        return [*range(min(first_page, -(-self.spec.num_sinks // self.block_size))), *range(first_page, num_pages)]

    def _positions(self, pages: Int[Tensor, "n W"]) -> Int[Tensor, "n C"]:
        return (pages[:, :, None] * self.block_size + torch.arange(self.block_size, device=pages.device)).flatten(1)

    def _in_window(self, queries: Int[Tensor, "a 1"], keys: Int[Tensor, "*b"]) -> Bool[Tensor, "..."]:
        if self.spec.window is None:
            return torch.ones_like(keys, dtype=torch.bool)
        return (keys > queries - self.spec.window) | (keys < self.spec.num_sinks)

    def _cache_rows(self, blocks: Int[Tensor, "n W"]) -> Int[Tensor, "n H_kv W"]:
        """Block ids to rows of the cache seen as [N * H_kv, block_size * D]."""
        heads = torch.arange(self.spec.num_kv_heads, device=blocks.device)
        return blocks.long()[:, None, :] * self.spec.num_kv_heads + heads[None, :, None]

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
        parts = [] if plan.splits is None else [self._attend_splits(q[: plan.num_split], kv, plan.splits)]
        parts += [self._attend_chunk(q[chunk.tokens], kv, chunk) for chunk in plan.chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_splits(self, q: Float[Tensor, "B H D"], kv: LayerKV, plan: SplitPlan) -> Float[Tensor, "B H D"]:
        num_seqs, num_splits, num_kv_heads, head_dim = len(q), len(plan.owner), self.spec.num_kv_heads, q.shape[-1]
        queries = q.reshape(num_seqs, num_kv_heads, -1, head_dim)  # [B, H_kv, G, D]
        k, v = (each.view(num_splits, num_kv_heads, -1, head_dim) for each in gather_rows(kv, plan.rows, q.dtype))
        v.view(-1, head_dim).index_fill_(0, plan.stale, 0)
        if num_splits == num_seqs <= self.fused_seqs:
            k.view(-1, head_dim).index_fill_(0, plan.stale, 0)  # the fused call adds its mask: NaN would stay
            fused = F.scaled_dot_product_attention(queries, k, v, attn_mask=~plan.hidden, scale=self.spec.scale)
            return fused.reshape(q.shape)

        scores = (queries[plan.owner] @ k.transpose(-1, -2)).float()  # [n, H_kv, G, C]
        scores = scores.mul_(self.spec.scale).masked_fill_(plan.hidden, -math.inf)
        # Merge by the sequence's maximum over all its splits; an unused split (-inf everywhere) then adds exact zeros.
        maximum = scores.amax(-1, keepdim=True)
        if num_splits > num_seqs:
            owner = plan.owner.view(-1, 1, 1, 1).expand_as(maximum)
            start = maximum.new_full((num_seqs, *maximum.shape[1:]), -math.inf)
            maximum = start.scatter_reduce(0, owner, maximum, "amax")[plan.owner]
        p = scores.sub_(maximum.clamp(min=torch.finfo(torch.float32).min)).exp_()
        total, out = p.sum(-1, keepdim=True), (p.to(q.dtype) @ v).float()
        if num_splits > num_seqs:
            total, out = (x.new_zeros(num_seqs, *x.shape[1:]).index_add_(0, plan.owner, x) for x in (total, out))
        return (out / total.clamp(min=torch.finfo(torch.float32).tiny)).to(q.dtype).view(q.shape)

    def _attend_chunk(self, q: Float[Tensor, "L H D"], kv: LayerKV, plan: ChunkPlan) -> Float[Tensor, "L H D"]:
        num_kv_heads, head_dim, scale = self.spec.num_kv_heads, self.spec.head_dim, self.spec.scale
        pages = gather_rows(kv, plan.rows, q.dtype)
        k, v = (each.view(1, num_kv_heads, -1, head_dim)[:, :, plan.keys] for each in pages)
        if len(q) == 1 and plan.mask is None:
            # The G query heads of a KV head run as G queries, so K and V are not repeated per query head.
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
    """Write K or V of tokens into rows of the cache seen as [N * H_kv * block_size, D], quantised if it has scales."""
    x = x.reshape(-1, x.shape[-1])
    if scale is not None:
        x, row_scale = quantise_reference(x, "int8" if data.dtype == torch.int8 else "fp8_e4m3")
        scale.view(-1).index_copy_(0, rows, row_scale)
    data.view(-1, data.shape[-1]).index_copy_(0, rows, x.to(data.dtype))


def gather_rows(kv: LayerKV, rows: Int[Tensor, "R"], dtype: torch.dtype) -> Iterator[Float[Tensor, "R page D"]]:
    """Pages of K, then of V, dequantised to `dtype`; `rows` are rows of the cache seen as [N * H_kv, block_size, D]."""
    for data, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale)):
        pages = data.view(-1, data.shape[2] * data.shape[3]).index_select(0, rows).view(-1, *data.shape[2:])
        if scale is not None:
            codes = pages.view(torch.float8_e4m3fn) if pages.dtype == torch.uint8 else pages
            pages = codes.float() * scale.flatten(0, 1).index_select(0, rows)[..., None]
        yield pages.to(dtype)
