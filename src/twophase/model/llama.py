"""The Llama family's forward pass over paged K/V: Llama, SmolLM2, Mistral, Qwen2, Qwen3, Gemma 3, Mixtral, Qwen3-MoE.

Plain functions over frozen weights. The batch is one flat row of tokens; only attention separates sequences.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from twophase.attention.interface import AttentionBackend, AttentionSpec, rms_norm
from twophase.cache.kv_cache import KVCache, LayerKV
from twophase.doors import feature
from twophase.model.config import ModelConfig, RopeConfig
from twophase.model.weights import LayerWeights, ModelWeights


def attention_spec(config: ModelConfig) -> AttentionSpec:
    """Attention's sizes, scale and window; of the sliding layers, if a model has full and sliding layers."""
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        # arXiv:1706.03762, equation 1
        scale=config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale,
        window=config.sliding_window,
    )


def model_backend(config: ModelConfig, make: Callable[[AttentionSpec], AttentionBackend]) -> AttentionBackend:
    """The backend that `make` builds; for a model with full and sliding layers, a combination of one for each kind."""
    spec = attention_spec(config)
    if not config.is_mixed:
        return make(spec)
    mixed: AttentionBackend = feature("windows.mixed_backend").mixed_backend(config, spec, make)
    return mixed


class LlamaModel:
    """A model ready to run. A step changes only the K/V cache.

    Args:
        backend: Computes attention for this model: see `model_backend`.
        max_model_len: Positions to prepare RoPE for; the model's own limit if None.
        sum_over_ranks, dispatch_experts: See `Executor`.

    Attributes:
        watch_experts: Called in each layer with experts, with the layer's number and the number of tokens for each
            expert of this rank (int64 [E], on the model's device). None: no call. See `ExpertLoad`.
    """

    watch_experts: Callable[[int, Int[Tensor, "E"]], None] | None = None

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        backend: AttentionBackend,
        max_model_len: int | None = None,
        sum_over_ranks: Callable[[Tensor], Tensor] | None = None,
        dispatch_experts: Callable[..., Tensor] | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        self.device = weights.embed.device
        self._sum = sum_over_ranks or (lambda partial: partial)
        num_positions = max_model_len or config.max_position_embeddings
        self.cos, self.sin = rope_tables(config.rope, config.head_dim, num_positions, self.device)
        full = local = self.cos, self.sin
        if config.local_rope is not None:
            local = rope_tables(config.local_rope, config.head_dim, num_positions, self.device)
        self._rope_of_layer = [full if sees_all else local for sees_all in config.sees_all]
        # Rounded to the dtype of the activations, as the model was trained: in bf16, sqrt(1152) is 34.0.
        self._embed_scale = torch.tensor(config.embed_scale, dtype=weights.dtype).item()
        self._gated = backend.silu_mul if config.activation == "silu" else feature("gemma3").gelu_mul
        self._sparse_layers: tuple[int, ...] = ()
        if config.experts is not None:
            self._sparse_layers = config.experts.sparse_layers
            mixture = feature("experts.mixture").MixtureOfExperts
            self._mix_experts = mixture(config.experts, self._gated, self._sum, dispatch_experts)

    def forward(
        self,
        token_ids: Int[Tensor, "T"],
        plan: Any,
        kv_cache: KVCache,
        after_layer: Callable[[int], None] | None = None,
    ) -> Float[Tensor, "T N"]:
        """Final hidden states of a step's tokens, before the last linear layer; their K and V go into `kv_cache`.
        `plan` is `backend.plan` of the step's batch. `after_layer` is called with a layer's number when its K and V are
        written."""
        weights, backend, eps = self.weights, self.backend, self.config.rms_norm_eps
        with _current(token_ids.device):
            x = F.embedding(token_ids, weights.embed).to(weights.dtype)
            if self._embed_scale != 1:
                x = x * self._embed_scale
            residual = None
            for number, (layer, kv) in enumerate(zip(weights.layers, kv_cache.layers, strict=True)):
                x, residual = backend.rmsnorm(x, residual, layer.input_norm, eps)
                x = self._attention(x, layer, kv, plan, *self._rope_of_layer[number])
                if layer.attention_output_norm is not None:
                    x, _ = backend.rmsnorm(x, None, layer.attention_output_norm, eps)
                if after_layer is not None:
                    after_layer(number)
                x, residual = backend.rmsnorm(x, residual, layer.post_attention_norm, eps)
                x = self._mlp(x, layer.mlp, number)
                if layer.mlp_output_norm is not None:
                    x, _ = backend.rmsnorm(x, None, layer.mlp_output_norm, eps)
            return backend.rmsnorm(x, residual, weights.final_norm, eps)[0]

    def logits(self, hidden: Float[Tensor, "R N"]) -> Float[Tensor, "R V"]:
        """fp32 logits of rows of `forward`'s result; callers pass only rows that are sampled or scored."""
        return self.weights.lm_head(hidden).float()

    def _attention(
        self,
        x: Float[Tensor, "T N"],
        layer: LayerWeights,
        kv: LayerKV,
        plan: Any,
        cos: Float[Tensor, "P D_half"],
        sin: Float[Tensor, "P D_half"],
    ) -> Float[Tensor, "T N"]:
        config = self.config
        # [T, (H + 2 H_kv) D] seen as heads; q, k, v are views of it.
        heads = layer.qkv(x).view(x.shape[0], -1, config.head_dim)
        q, k, v = heads.split_with_sizes((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q = self.backend.write(q, k, v, cos, sin, kv, plan)
        return self._sum(layer.o(self.backend.attend(q, kv, plan).flatten(1)))

    def _mlp(self, x: Float[Tensor, "T N"], mlp: Any, number: int) -> Float[Tensor, "T N"]:
        if number in self._sparse_layers:
            return self._mix_experts(x, mlp, number, self.watch_experts)
        return self._sum(mlp.down(self._gated(mlp.gate_up(x))))


def rope_tables(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> tuple[Float[Tensor, "P D_half"], Float[Tensor, "P D_half"]]:
    """cos and sin of position * frequency in fp32, one row per position in [0, num_positions).

    fp32 and not fp64: models are trained with fp32 angles, whose rounding at position 8,000 is already 5e-4 radians.
    """
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return angles.cos().to(device), angles.sin().to(device)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float[Tensor, "D_half"]:
    """Radians per position of each rotated pair: theta ** (-2 i / D) for i in [0, D/2), then the scaling."""
    inv_freq = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    return inv_freq if rope.scaling is None else rope.scaling(inv_freq)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current device: Triton launches there, whereas torch follows its tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
