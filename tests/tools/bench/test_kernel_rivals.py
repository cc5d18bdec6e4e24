"""Rivals that are not installed here: whether we call them as they document, with arguments that mean our batch.

The stand-ins take what the documentation says, by its names, and compute the answer from nothing else.
"""

import sys
from itertools import pairwise
from types import ModuleType

import pytest
import torch

from twophase_tools.bench.kernel_cases import QUICK, CaseTable
from twophase_tools.bench.kernel_rivals import flash_attn, flashinfer, sgl_kernel

TABLE = CaseTable(QUICK, torch.float32, torch.device("cpu"), may_compile=False)
BATCHES = {
    "even decode": ((1, 1), (48, 48)),
    "ragged decode": ((1, 1, 1), (33, 5, 16)),
    "whole prompts": ((16, 16), (16, 16)),
    "mixed chunks": ((8, 16, 1), (40, 16, 23)),
    "verified": ((5,), (48,)),
}


def attention(q, k, v, scale):
    """The last tokens of a sequence, q [L, H, D], over k and v [S, H_kv, D], causally."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    position = len(k) - len(q) + torch.arange(len(q))[:, None]
    scores = torch.einsum("lhd,shd->hls", q, k) * scale
    scores = scores.masked_fill(torch.arange(len(k)) > position, float("-inf"))
    return torch.einsum("hls,shd->lhd", scores.softmax(-1), v)


def ragged(q, cu_query_lens, sequences, scale):
    chunks = [q[start:end] for start, end in pairwise(cu_query_lens)]
    return torch.cat([attention(chunk, k, v, scale) for chunk, (k, v) in zip(chunks, sequences, strict=True)])


class FlashInferWrapper:
    """Both of its paged wrappers: pages are [N, H_kv, page, D] ("HND"), and `run` knows only what was planned."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, **buffers):
        assert (float_workspace_buffer.dtype, kv_layout, use_cuda_graph) == (torch.uint8, "HND", True)
        self.buffers = buffers

    def run(self, q, paged_kv_cache):
        k_cache, v_cache = paged_kv_cache
        sequences = []
        for s, last in enumerate(self.last_page_len.tolist()):
            assert 1 <= last <= self.page_size
            pages = self.indices[self.indptr[s] : self.indptr[s + 1]].long()
            length = (len(pages) - 1) * self.page_size + last
            sequences.append([c[pages].transpose(1, 2).flatten(0, 1)[:length] for c in (k_cache, v_cache)])
        return ragged(q, self.qo_indptr, sequences, self.sm_scale)

    def _keep(self, qo_indptr, pages, shape, sm_scale, q_data_type, kv_data_type):
        self.indptr, self.indices, self.last_page_len = pages
        assert all(tensor.dtype == torch.int32 for tensor in (qo_indptr, *pages))
        *self.heads, self.page_size = shape
        assert shape == (QUICK.num_heads, QUICK.num_kv_heads, QUICK.head_dim, QUICK.page)
        assert q_data_type == kv_data_type == torch.float32
        self.qo_indptr, self.sm_scale = qo_indptr, sm_scale


class Decode(FlashInferWrapper):
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        q_data_type, kv_data_type, sm_scale,
    ):  # fmt: skip
        buffers = dict(self.buffers)
        assert buffers.pop("use_tensor_cores") is False  # two heads share one of K and V
        assert buffers["paged_kv_indptr_buffer"].shape == indptr.shape
        assert buffers["paged_kv_indices_buffer"].shape == indices.shape
        assert buffers["paged_kv_last_page_len_buffer"].shape == last_page_len.shape
        shape = num_qo_heads, num_kv_heads, head_dim, page_size
        qo_indptr = torch.arange(len(indptr), dtype=torch.int32)
        self._keep(qo_indptr, (indptr, indices, last_page_len), shape, sm_scale, q_data_type, kv_data_type)


class Prefill(FlashInferWrapper):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, *, causal=False, q_data_type, kv_data_type, sm_scale,
    ):  # fmt: skip
        assert causal
        assert self.buffers["qo_indptr_buf"].shape == self.buffers["paged_kv_indptr_buf"].shape == qo_indptr.shape
        assert self.buffers["paged_kv_indices_buf"].shape == paged_kv_indices.shape
        assert self.buffers["paged_kv_last_page_len_buf"].shape == paged_kv_last_page_len.shape
        pages = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        shape = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self._keep(qo_indptr, pages, shape, sm_scale, q_data_type, kv_data_type)


def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, softmax_scale, causal):
    """flash-attn 2 without a block table: q [B, L, H, D], caches [B, S, H_kv, D]."""
    assert causal
    return torch.stack(
        [
            attention(chunk, k[:length], v[:length], softmax_scale)
            for chunk, k, v, length in zip(q, k_cache, v_cache, cache_seqlens, strict=True)
        ]
    )


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale, causal
):  # fmt: skip
    assert causal
    assert (cu_seqlens_q.dtype, cu_seqlens_k.dtype, len(k)) == (torch.int32, torch.int32, cu_seqlens_k[-1])
    assert (max_seqlen_q, max_seqlen_k) == (cu_seqlens_q.diff().max(), cu_seqlens_k.diff().max())
    bounds = pairwise(cu_seqlens_k)
    return ragged(q, cu_seqlens_q, [(k[start:end], v[start:end]) for start, end in bounds], softmax_scale)


def sgl_flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, softmax_scale, causal
):  # fmt: skip
    """sgl-kernel: q [T, H, D], caches [N, page, H_kv, D]."""
    assert causal
    assert max_seqlen_q == cu_seqlens_q.diff().max()
    caches = k_cache, v_cache
    sequences = [
        [cache[table.long()].flatten(0, 1)[:length] for cache in caches]
        for table, length in zip(page_table, cache_seqlens, strict=True)
    ]
    return ragged(q, cu_seqlens_q, sequences, softmax_scale)


@pytest.fixture
def installed(monkeypatch):
    def install(name, **functions):
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)

    install("flashinfer", BatchDecodeWithPagedKVCacheWrapper=Decode, BatchPrefillWithPagedKVCacheWrapper=Prefill)
    install(
        "flash_attn",
        flash_attn_with_kvcache=flash_attn_with_kvcache,
        flash_attn_varlen_func=flash_attn_varlen_func,
    )
    install("sgl_kernel")
    install("sgl_kernel.flash_attn", flash_attn_with_kvcache=sgl_flash_attn_with_kvcache)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("rival", [flashinfer, flash_attn, sgl_kernel])
@pytest.mark.parametrize("batch", BATCHES)
def test_called_as_documented_it_gives_the_answer(rival, batch):
    query_lens, seq_lens = BATCHES[batch]
    inputs = TABLE._attention_batch(query_lens, seq_lens)
    variant = rival(inputs)
    (found,) = variant.results(variant.call())
    sequences = [
        [dense[s, :, :length].transpose(0, 1) for dense in (inputs.keys, inputs.values)]
        for s, length in enumerate(seq_lens)
    ]
    want = ragged(inputs.q, inputs.cu_query_lens, sequences, QUICK.scale)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rival", [flashinfer, flash_attn, sgl_kernel])
def test_not_installed(rival, monkeypatch):
    for name in ("flashinfer", "flash_attn", "sgl_kernel", "sgl_kernel.flash_attn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError):
        rival(TABLE._attention_batch((1,), (5,)))
