"""Other people's attention on our batches: torch's SDPA and FlexAttention; FlashInfer, FlashAttention and SGLang's
kernels where they are installed.

Each gets K and V in its own favourite layout, copied before the clock starts. Who cannot take sequences of unequal
lengths gets them padded, with a mask, and its name says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from twophase_tools.bench.kernel_variants import MakeVariant, Variant, compiled

SDPA_BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cudnn": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}
WORKSPACE_BYTES = 256 * 1024**2  # FlashInfer recommends 128 MB; long contexts over many splits take more


@dataclass(frozen=True)
class AttentionBatch:
    """A batch of chunks: the last query_lens[s] tokens of sequence s attend, causally, to its seq_lens[s] tokens.

    Attributes:
        q: [T, H, D], the chunks one after another.
        keys, values: [B, H_kv, S, D] padded to the longest sequence in whole pages. Slots after a sequence's end hold
            noise.
        k_cache, v_cache: The same in scattered pages, [N, H_kv, page, D].
        block_tables: int32 [B, W].
        scale: Factor on Q.K.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    scale: float

    @property
    def is_decode(self) -> bool:
        return set(self.query_lens) == {1}

    @property
    def is_even(self) -> bool:
        """Whether nothing is padded."""
        return {*self.seq_lens} == {self.keys.shape[2]} and len({*self.query_lens}) == 1

    @property
    def sees_all(self) -> bool:
        return self.is_even and self.is_decode

    @property
    def is_whole_prompts(self) -> bool:
        return self.is_even and self.query_lens == self.seq_lens

    @property
    def mask_in_name(self) -> str:
        """What a contender must own up to that gets the batch padded, or needs a mask for what others know."""
        if self.sees_all or self.is_whole_prompts:
            return ""
        return ", mask" if self.is_even else ", padded, mask"

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.q.device)

    @cached_property
    def lengths(self) -> Tensor:
        return self.ints(list(self.seq_lens))

    @cached_property
    def cu_query_lens(self) -> Tensor:
        return self.ints([0, *self.query_lens]).cumsum(0, dtype=torch.int32)

    @cached_property
    def context_lens(self) -> Tensor:
        """int32 [B]: tokens before each chunk."""
        return self.lengths - self.ints(list(self.query_lens))

    @cached_property
    def is_query(self) -> Tensor:
        """bool [B, L]: where padded chunks hold tokens."""
        longest = torch.arange(max(self.query_lens), device=self.q.device)
        return longest < self.ints(list(self.query_lens))[:, None]

    @cached_property
    def padded_q(self) -> Tensor:
        """[B, H, L, D]."""
        padded = self.q.new_zeros(*self.is_query.shape, *self.q.shape[1:])
        padded[self.is_query] = self.q
        return padded.transpose(1, 2).contiguous()

    def packed(self, out: Tensor) -> tuple[Tensor, ...]:
        """[B, H, L, D] as [T, H, D]."""
        return (out.transpose(1, 2)[self.is_query],)


def attention_rivals(batch: AttentionBatch, *, may_compile: bool) -> dict[str, MakeVariant]:
    """Name -> contender. One that is not installed raises ModuleNotFoundError when it is made."""
    rivals: dict[str, MakeVariant] = {
        name + batch.mask_in_name: partial(sdpa, batch, backend) for name, backend in SDPA_BACKENDS.items()
    }
    rivals["FlexAttention" + (", padded" if not batch.is_even else "")] = partial(flex, batch, may_compile)
    return rivals | {
        "FlashInfer": partial(flashinfer, batch),
        "flash-attn": partial(flash_attn, batch),
        "sgl-kernel": partial(sgl_kernel, batch),
    }


def sdpa(batch: AttentionBatch, backend: SDPBackend) -> Variant:
    q, mask = batch.padded_q, None
    if not (batch.sees_all or batch.is_whole_prompts):
        queries, keys = (torch.arange(n, device=batch.q.device) for n in (q.shape[2], batch.keys.shape[2]))
        mask = (queries[:, None] + batch.context_lens[:, None, None] >= keys)[:, None]  # [B, 1, L, S]

    def call() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q,
                batch.keys,
                batch.values,
                attn_mask=mask,
                is_causal=batch.is_whole_prompts,
                scale=batch.scale,
                enable_gqa=True,
            )

    return Variant(call, batch.packed)


def flex(batch: AttentionBatch, may_compile: bool) -> Variant:
    """torch's FlexAttention; a block mask spares it the blocks that padding and causality hide."""
    q, keys, values, context_lens = batch.padded_q, batch.keys, batch.values, batch.context_lens
    # A lambda: torch counts the arguments of what it gets, and the tests' type checker wraps functions.
    causal = lambda sequence, head, query, key: query + context_lens[sequence] >= key  # noqa: E731
    whole_prompts = lambda sequence, head, query, key: query >= key  # noqa: E731
    size = q.shape[2], keys.shape[2]
    mask = None
    if batch.is_whole_prompts:
        mask = create_block_mask(whole_prompts, None, None, *size, device=str(q.device))
    elif not batch.sees_all:
        mask = create_block_mask(causal, len(q), None, *size, device=str(q.device))

    def attend() -> Any:
        return flex_attention(q, keys, values, block_mask=mask, scale=batch.scale, enable_gqa=True)

    return Variant(compiled(attend, dynamic=False) if may_compile else attend, batch.packed)


def flashinfer(batch: AttentionBatch) -> Variant:
    """FlashInfer's paged wrappers on our own pages, planned once, as for a CUDA graph.

    https://docs.flashinfer.ai/api/attention.html
    """
    module = import_module("flashinfer")
    _, num_kv_heads, page, head_dim = batch.k_cache.shape
    num_heads = batch.q.shape[1]
    num_pages = [-(-length // page) for length in batch.seq_lens]
    indptr = batch.ints([0, *num_pages]).cumsum(0, dtype=torch.int32)
    indices = torch.cat([table[:count] for table, count in zip(batch.block_tables, num_pages, strict=True)])
    pages = indptr, indices, (batch.lengths - 1) % page + 1
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=batch.q.device)
    shape = num_heads, num_kv_heads, head_dim, page
    options = {"sm_scale": batch.scale, "q_data_type": batch.q.dtype, "kv_data_type": batch.q.dtype}
    if batch.is_decode:
        names = ["paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer"]
        buffers = dict(zip(names, (tensor.clone() for tensor in pages), strict=True))
        # Its documentation: tensor cores are faster for large groups.
        use_tensor_cores = num_heads // num_kv_heads >= 4
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_cuda_graph=True, use_tensor_cores=use_tensor_cores, **buffers
        )
        wrapper.plan(*pages, *shape, **options)
    else:
        names = ["qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf"]
        chunks = batch.cu_query_lens, *pages
        buffers = dict(zip(names, (tensor.clone() for tensor in chunks), strict=True))
        wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", use_cuda_graph=True, **buffers)
        wrapper.plan(*chunks, *shape, causal=True, **options)
    return Variant(lambda: wrapper.run(batch.q, (batch.k_cache, batch.v_cache)))


def flash_attn(batch: AttentionBatch) -> Variant:
    """FlashAttention-2 on contiguous K and V, its best case (its pages would hold 256 tokens at least).

    A few tokens after a context go through its split decode, everything else through its ragged prefill.
    https://github.com/Dao-AILab/flash-attention#how-to-use-flashattention
    """
    module = import_module("flash_attn")
    keys, values = (dense.transpose(1, 2) for dense in (batch.keys, batch.values))  # [B, S, H_kv, D]
    if len({*batch.query_lens}) == 1 and batch.query_lens != batch.seq_lens:
        q = batch.q.view(len(keys), -1, *batch.q.shape[1:])
        keys, values = keys.contiguous(), values.contiguous()
        options = {"cache_seqlens": batch.lengths, "softmax_scale": batch.scale, "causal": True}
        call: Callable[[], Tensor] = lambda: module.flash_attn_with_kvcache(q, keys, values, **options)  # noqa: E731
        return Variant(call, lambda out: (out.flatten(0, 1),))
    is_key = torch.arange(keys.shape[1], device=batch.q.device) < batch.lengths[:, None]
    keys, values = keys[is_key], values[is_key]  # [total, H_kv, D]
    cu_seq_lens = F.pad(batch.lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = max(batch.query_lens), max(batch.seq_lens)
    return Variant(
        lambda: module.flash_attn_varlen_func(
            batch.q,
            keys,
            values,
            batch.cu_query_lens,
            cu_seq_lens,
            *longest,
            softmax_scale=batch.scale,
            causal=True,
        )
    )


def sgl_kernel(batch: AttentionBatch) -> Variant:
    """SGLang's FlashAttention-3 on pages of our size, tokens before heads; Hopper only.

    https://github.com/sgl-project/sglang/blob/main/sgl-kernel/python/sgl_kernel/flash_attn.py
    """
    module = import_module("sgl_kernel.flash_attn")
    k_cache, v_cache = (cache.transpose(1, 2).contiguous() for cache in (batch.k_cache, batch.v_cache))
    return Variant(
        lambda: module.flash_attn_with_kvcache(
            batch.q,
            k_cache,
            v_cache,
            cache_seqlens=batch.lengths,
            page_table=batch.block_tables,
            cu_seqlens_q=batch.cu_query_lens,
            max_seqlen_q=max(batch.query_lens),
            softmax_scale=batch.scale,
            causal=True,
        )
    )
