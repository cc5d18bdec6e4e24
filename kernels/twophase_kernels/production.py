"""Attention layers as they occur in production, without storage: what the kernels are compiled with ahead of time."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from twophase_kernels.quant import KVFormat, cache_dtype


class MetaInputs(NamedTuple):
    """Arguments without storage, to compile with: q, k_cache, v_cache, block_tables, seq_lens; and the scales."""

    args: tuple[Tensor, ...]
    scales: dict[str, Tensor | None]


@dataclass(frozen=True)
class MetaLayer:
    """An attention layer as it occurs in production, for compiling ahead of time."""

    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page: int = 16
    kv_format: KVFormat = "none"

    def __str__(self) -> str:
        kv = "" if self.kv_format == "none" else f" kv {self.kv_format}"
        dtype = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[self.dtype]
        return f"{dtype}{kv} {self.num_heads}/{self.num_kv_heads}/{self.head_dim} page {self.page}"

    def inputs(self, num_seqs: int, num_tokens: int) -> MetaInputs:
        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        # q is a view of the fused projection's output, as the engine has it.
        qkv = empty((num_tokens, self.num_heads + 2 * self.num_kv_heads, self.head_dim), self.dtype)
        caches = [
            empty((1024, self.num_kv_heads, self.page, self.head_dim), cache_dtype(self.kv_format, self.dtype))
            for _ in "kv"
        ]
        tables = empty((num_seqs, 512), torch.int32), empty((num_seqs,), torch.int32)
        scale = None if self.kv_format == "none" else empty((1024, self.num_kv_heads, self.page), torch.float32)
        return MetaInputs((qkv[:, : self.num_heads], *caches, *tables), {"k_scale": scale, "v_scale": scale})


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PRODUCTION_LAYERS = (
    MetaLayer(BF16, 32, 8, 128),  # Llama 3, Mistral, Qwen3
    MetaLayer(FP16, 32, 8, 128, page=64),
    MetaLayer(BF16, 28, 4, 128),  # Qwen2: a group of 7
    MetaLayer(BF16, 9, 3, 64),  # SmolLM2
    MetaLayer(BF16, 16, 1, 256, page=64),
    MetaLayer(BF16, 32, 32, 96),
    MetaLayer(FP16, 32, 32, 80),
    MetaLayer(FP32, 9, 3, 64),
    MetaLayer(BF16, 32, 8, 128, kv_format="int8"),
    MetaLayer(BF16, 32, 8, 128, kv_format="fp8_e4m3"),
    MetaLayer(FP16, 9, 3, 64, page=64, kv_format="int8"),
    MetaLayer(FP16, 9, 3, 64, page=64, kv_format="fp8_e4m3"),
)
