"""Paged attention in plain PyTorch: the default without CUDA, and the readable reference.

Decodes run batched, as FlashDecoding does it (split-KV, Dao et al. 2023): each sequence's context is cut into splits of
a fixed length, all splits of all sequences form one rectangular batch, and the partial results are merged by their
running maximum. So a ragged batch needs neither a Python loop over sequences nor padding to the longest one.
Prefill chunks run one `scaled_dot_product_attention` each.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import LayerKV
from twophase.core.batch import AttentionBatch
from twophase_kernels.quant import quantise_reference

# Keys per split. Measured for SmolLM2 on 2 cores at 32 sequences of 30-700 tokens: 64, 128 and 256 are within 15 % of
# each other, and the unsplit SDPA over gathered, padded pages takes 1.5 to 4 times as long.
SPLIT_KEYS = 128

# Decodes at most that one fused scaled_dot_product_attention serves. Measured likewise, one sequence of 128 keys, fused
# against a product, a softmax and a product: bf16 21 us and 109, fp32 21 and 51; 32 sequences 415 and 352. For bf16,
# whose small products are slow, that was a seventh of a step with 4-bit weights; fp32 gains 3 % of one, and keeps the
# sums that do not depend on how many sequences there are.
FUSED_SEQS = 8


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """B decodes cut into n splits of C keys each.

    Attributes:
        owner: The sequence each split belongs to, ascending.
        rows: Which rows of the cache, seen as [N * H_kv, block_size * D], hold the splits' pages.
        hidden: Keys the split's query must not see.
        stale: Which rows of the gathered [n * H_kv * C, D] come from slots that were never written. What an earlier
            owner left there may be anything, and 0 * NaN is NaN, so their V is zeroed.
    """

    owner: Int[Tensor, "n"]
    rows: Int[Tensor, "R"]
    hidden: Bool[Tensor, "n 1 1 C"]
    stale: Int[Tensor, "Z"]


@dataclass(frozen=True, slots=True)
class LoneDecodePlan:
    """A single decode of a step: its keys lie in a row, so nothing is masked.

    Attributes:
        rows: Which rows of the cache, seen as [N * H_kv, block_size * D], hold its keys.
        first_key: Of the keys gathered, the first one that its query sees.
        num_keys: S, how many it sees.
    """

    rows: Int[Tensor, "R"]
    first_key: int
    num_keys: int


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """One prefill chunk: tokens [start, end) of the flat batch, S gathered keys.

    Attributes:
        rows: Which rows of the cache, seen as [N * H_kv, block_size * D], hold its keys.
        num_keys: S; what is gathered beyond it is the unused tail of the last page.
        mask: None for a fresh prompt, where plain causality is enough.
    """

    start: int
    end: int
    rows: Int[Tensor, "R"]
    num_keys: int
    mask: Bool[Tensor, "L S"] | None


@dataclass(slots=True)
class TorchPlan:
    """What the layers of one step share. `rotation` is filled by the first layer that needs it."""

    positions: Int[Tensor, "T"]
    kept: Int[Tensor, "K"] | None
    write_rows: Int[Tensor, "R"]
    decode: DecodePlan | LoneDecodePlan | None
    num_decodes: int
    prefills: list[PrefillPlan]
    rotation: tuple[Float[Tensor, "T 1 D"], Float[Tensor, "T 1 D"]] | None = None


class TorchBackend(AttentionBackend):
    """The torch backend, on any device. Softmax and sums are fp32; products have the model's dtype.

    Args:
        split_keys: Keys of a split.
        fused_seqs: Decodes at most that one fused call serves, if none needs more than one split; a single decode,
            however long, is served by one.
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
        prefills, start = [], batch.num_decodes
        for seq in range(batch.num_decodes, len(batch.query_lens_host)):
            prefills.append(self._plan_prefill(batch, seq, start))
            start = prefills[-1].end
        decode = self._plan_decode(batch)
        return TorchPlan(batch.positions.long(), kept, write_rows, decode, batch.num_decodes, prefills)

    def _plan_decode(self, batch: AttentionBatch) -> DecodePlan | LoneDecodePlan | None:
        if batch.num_decodes == 1 and self.fused_seqs and not self.spec.num_sinks:
            return self._plan_lone_decode(batch)
        return self._plan_splits(batch) if batch.num_decodes else None

    def _plan_lone_decode(self, batch: AttentionBatch) -> LoneDecodePlan:
        seq_len = batch.seq_lens_host[0]
        first_key = 0 if self.spec.window is None else max(0, seq_len - self.spec.window)
        first_page = first_key // self.block_size
        num_pages = max(1, -(-seq_len // self.block_size) - first_page)  # also of a padding row, which sees nothing
        rows = self._cache_rows(batch.block_tables[:1, first_page : first_page + num_pages])
        return LoneDecodePlan(rows, first_key - first_page * self.block_size, seq_len - first_key)

    def _plan_splits(self, batch: AttentionBatch) -> DecodePlan:
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
        # Instead of pages past a split's end, which may not be there or were freed, it reads the first page of the
        # window or of the sinks: it is there, and its slots are written, as a rule all.
        page = key_start[:, None] // self.block_size + torch.arange(self.split_blocks, device=device)
        page = torch.where(page * self.block_size < key_end[:, None], page, live_page[:, None])
        rows = self._cache_rows(batch.block_tables[owner[:, None], page])
        written = page[:, :, None] * self.block_size + torch.arange(self.block_size, device=device)
        stale = (written.view(positions.shape) >= seq_lens[owner, None])[:, None].expand(-1, self.spec.num_kv_heads, -1)
        return DecodePlan(owner, rows, ~visible[:, None, None, :], torch.nonzero(stale.flatten()).squeeze(1))

    def _plan_prefill(self, batch: AttentionBatch, seq: int, start: int) -> PrefillPlan:
        device = batch.seq_lens.device
        num_queries, seq_len = batch.query_lens_host[seq], batch.seq_lens_host[seq]
        first_query = seq_len - num_queries
        pages = torch.arange(-(-seq_len // self.block_size), device=device)
        if self.spec.window is not None:
            first_page = max(0, first_query + 1 - self.spec.window) // self.block_size
            sink_pages = min(first_page, -(-self.spec.num_sinks // self.block_size))
            pages = torch.cat([pages[:sink_pages], pages[first_page:]])
        num_keys = (pages.shape[0] - 1) * self.block_size + (seq_len - 1) % self.block_size + 1
        rows = self._cache_rows(batch.block_tables[seq, pages][None])
        mask = None
        if first_query or (self.spec.window is not None and seq_len > self.spec.window):
            keys = (pages[:, None] * self.block_size + torch.arange(self.block_size, device=device)).flatten()[
                :num_keys
            ]
            queries = torch.arange(first_query, seq_len, device=device)[:, None]
            mask = (keys <= queries) & self._in_window(queries, keys)
        return PrefillPlan(start, start + num_queries, rows, num_keys, mask)

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
        if plan.decode is not None and not plan.prefills:
            return self._decode(q, kv, plan.decode)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if plan.decode is not None:
            out[: plan.num_decodes] = self._decode(q[: plan.num_decodes], kv, plan.decode)
        for chunk in plan.prefills:
            out[chunk.start : chunk.end] = self._prefill(q[chunk.start : chunk.end], kv, chunk)
        return out

    def _decode(
        self, q: Float[Tensor, "B H D"], kv: LayerKV, plan: DecodePlan | LoneDecodePlan
    ) -> Float[Tensor, "B H D"]:
        if isinstance(plan, LoneDecodePlan):
            return self._decode_alone(q, kv, plan)
        return self._decode_splits(q, kv, plan)

    def _decode_alone(self, q: Float[Tensor, "1 H D"], kv: LayerKV, plan: LoneDecodePlan) -> Float[Tensor, "1 H D"]:
        num_kv_heads, head_dim = self.spec.num_kv_heads, self.spec.head_dim
        k, v = (
            gathered_keys(data, scale, plan.rows, num_kv_heads, q.dtype).narrow(1, plan.first_key, plan.num_keys)
            for data, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
        )
        queries = q.view(1, num_kv_heads, -1, head_dim)  # the heads of a group, as if they were queries of one head
        return F.scaled_dot_product_attention(queries, k[None], v[None], scale=self.spec.scale).view(q.shape)

    def _decode_splits(self, q: Float[Tensor, "B H D"], kv: LayerKV, plan: DecodePlan) -> Float[Tensor, "B H D"]:
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

    def _prefill(self, q: Float[Tensor, "L H D"], kv: LayerKV, plan: PrefillPlan) -> Float[Tensor, "L H D"]:
        num_kv_heads = self.spec.num_kv_heads
        k, v = (
            gathered_keys(data, scale, plan.rows, num_kv_heads, q.dtype)[:, : plan.num_keys]
            for data, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
        )
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=plan.mask,
            is_causal=plan.mask is None,
            scale=self.spec.scale,
            enable_gqa=self.spec.num_heads != num_kv_heads,
        )
        return out[0].transpose(0, 1)

    def rmsnorm(
        self, x: Float[Tensor, "T N"], residual: Float[Tensor, "T N"] | None, weight: Float[Tensor, "N"], eps: float
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        if residual is not None:
            x = residual.add_(x)
        return rms_norm(x, weight, eps), x

    def silu_mul(self, gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rms_norm(x: Float[Tensor, "*a N"], weight: Float[Tensor, "N"], eps: float) -> Float[Tensor, "*a N"]:
    """RMSNorm over the last dimension (arXiv:1910.07467), in fp32, rounded once at the end.

    The root of |x|^2 / N + eps as a hypotenuse, because each small operation counts in a decode step: against
    `F.rms_norm` a layer of one bf16 row takes 10 us and 14, 512 fp32 rows take 0.09 ms and 1.0.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    rms = norm.mul_(x.shape[-1] ** -0.5).hypot_(_root(eps))
    return (x / rms).mul_(weight).to(x.dtype)


@functools.cache
def _root(eps: float) -> Float[Tensor, ""]:
    return torch.tensor(math.sqrt(eps), dtype=torch.float32)


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
