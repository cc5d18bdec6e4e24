"""The Llama family's forward pass over paged K/V: Llama, SmolLM2, Mistral, Qwen2 and Qwen3, Mixtral and Qwen3-MoE.

Plain functions over frozen weights. The batch is one flat row of tokens; only attention knows sequences apart.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.cache.kv_cache import KVCache, LayerKV
from twophase.model.config import ModelConfig
from twophase.model.experts import DispatchExperts, SparseMLP, mix_experts
from twophase.model.rope import rope_tables
from twophase.model.weights import LayerWeights, ModelWeights


def attention_spec(config: ModelConfig) -> AttentionSpec:
    """What a backend must compute for this model; scores are scaled by 1 / sqrt(D) (arXiv:1706.03762, equation 1)."""
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=config.sliding_window,
    )


class LlamaModel:
    """A model ready to run. Immutable; what changes in a step is the K/V cache.

    Args:
        config: What the model is.
        weights: Its weights, on the device it runs on.
        backend: Attention made for `attention_spec(config)`.
        max_model_len: Positions to prepare RoPE for; the model's own limit if None.
        sum_over_ranks: Adds up, in place, what this and other processes computed: the weights are a part of the model,
            cut so that each block's output is a partial sum (twophase.parallel.sharding). None: they are all of it.
        dispatch_experts: Has each token's experts computed by the processes that hold them, where each process holds
            some experts whole (twophase.parallel.expert_parallel). None: every expert is here, or a part of each.

    Attributes:
        watch_experts: Called in each layer that has experts, with the layer's number and how many tokens each expert of
            this process computes (int64 [E], on the model's device). None: no call. See `ExpertLoad`.
    """

    watch_experts: Callable[[int, Int[Tensor, "E"]], None] | None = None

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        backend: AttentionBackend,
        max_model_len: int | None = None,
        sum_over_ranks: Callable[[Tensor], Tensor] | None = None,
        dispatch_experts: DispatchExperts | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        self.device = weights.embed.device
        self._sum = sum_over_ranks or _already_whole
        self._dispatch_experts = dispatch_experts
        self.cos, self.sin = rope_tables(config, max_model_len or config.max_position_embeddings, self.device)

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph can hold the forward pass: nothing in it is decided by the host."""
        sparse = [layer.mlp for layer in self.weights.layers if isinstance(layer.mlp, SparseMLP)]
        return all(mlp.gate_up.stacked is not None and mlp.down.stacked is not None for mlp in sparse)

    def forward(
        self,
        token_ids: Int[Tensor, "T"],
        plan: Any,
        kv_cache: KVCache,
        after_layer: Callable[[int], None] | None = None,
    ) -> Float[Tensor, "T N"]:
        """Final hidden states of a step's tokens, before the last linear layer.

        `plan` is what `backend.plan` made of the step's batch. Writes the tokens' K and V into `kv_cache`;
        `after_layer` is called with a layer's number when its K and V are there, while the rest is still to compute.
        """
        weights, backend, eps = self.weights, self.backend, self.config.rms_norm_eps
        with _current(token_ids.device):
            x = F.embedding(token_ids, weights.embed).to(weights.dtype)
            residual = None
            for number, (layer, kv) in enumerate(zip(weights.layers, kv_cache.layers, strict=True)):
                x, residual = backend.rmsnorm(x, residual, layer.input_norm, eps)
                x = self._attention(x, layer, kv, plan)
                if after_layer is not None:
                    after_layer(number)
                x, residual = backend.rmsnorm(x, residual, layer.post_attention_norm, eps)
                x = self._mlp(x, layer, number)
            return backend.rmsnorm(x, residual, weights.final_norm, eps)[0]

    def logits(self, hidden: Float[Tensor, "R N"]) -> Float[Tensor, "R V"]:
        """fp32 logits of the rows given: choose those to be sampled from what `forward` returned."""
        return self.weights.lm_head(hidden).float()

    def _attention(self, x: Float[Tensor, "T N"], layer: LayerWeights, kv: LayerKV, plan: Any) -> Float[Tensor, "T N"]:
        config = self.config
        # [T, (H + 2 H_kv) D] seen as heads; q, k, v are views of it.
        heads = layer.qkv(x).view(x.shape[0], -1, config.head_dim)
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(q, (config.head_dim,), layer.q_norm, config.rms_norm_eps)
            k = F.rms_norm(k, (config.head_dim,), layer.k_norm, config.rms_norm_eps)
        q = self.backend.write(q, k, v, self.cos, self.sin, kv, plan)
        return self._sum(layer.o(self.backend.attend(q, kv, plan).flatten(1)))

    def _mlp(self, x: Float[Tensor, "T N"], layer: LayerWeights, number: int) -> Float[Tensor, "T N"]:
        if not isinstance(layer.mlp, SparseMLP):
            return self._sum(layer.mlp.down(self.backend.silu_mul(layer.mlp.gate_up(x))))
        assert self.config.experts is not None
        mix = partial(mix_experts, router=layer.mlp.router, config=self.config.experts)
        compute = partial(self._experts, layer.mlp, number)
        if self._dispatch_experts is not None:
            return self._dispatch_experts(x, mix, compute)
        return self._sum(mix(x, compute))

    def _experts(
        self, mlp: SparseMLP, number: int, rows: Float[Tensor, "P N"], counts: Int[Tensor, "E"]
    ) -> Float[Tensor, "P N"]:
        """Every expert's MLP over its own rows: `counts[e]` of them for expert e, one expert after the other."""
        if self.watch_experts is not None:
            self.watch_experts(number, counts)
        return mlp.down(self.backend.silu_mul(mlp.gate_up(rows, counts)), counts)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one: torch follows its tensors by itself, Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _already_whole(x: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    return x
