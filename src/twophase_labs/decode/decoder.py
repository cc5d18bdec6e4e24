"""SmolLM2 taken apart: what one layer does, without a loop over layers and without a cache."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase_labs.kit.models import smollm2

LayerCache = tuple[Tensor, Tensor]  # keys and values of one layer, [H_kv, S, D] each


class Decoder:
    """The parts of a Llama that transformers has loaded, over a flat run of tokens: x is [T, hidden].

    Nothing here remembers anything; what a token needs of the past is given to `attend`.
    """

    def __init__(self, llama: Any) -> None:
        self.llama = llama
        config = llama.config
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.head_dim: int = llama.model.layers[0].self_attn.head_dim

    def empty_cache(self) -> list[LayerCache]:
        """A pair of keys and values per layer, with no token in them."""
        return [
            (torch.empty(self.num_kv_heads, 0, self.head_dim), torch.empty(self.num_kv_heads, 0, self.head_dim))
            for _ in range(self.num_layers)
        ]

    def embed(self, ids: Int[Tensor, " T"]) -> Float[Tensor, "T hidden"]:
        return self.llama.model.embed_tokens(ids)

    def project(
        self, layer: int, x: Float[Tensor, "T hidden"], positions: Int[Tensor, " T"]
    ) -> tuple[Float[Tensor, "H T D"], Float[Tensor, "H_kv T D"], Float[Tensor, "H_kv T D"]]:
        """Queries, keys and values of these tokens in one layer, queries and keys rotated to their positions."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        block = self.llama.model.layers[layer]
        attention, normed = block.self_attn, block.input_layernorm(x)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cos, sin = self.llama.model.rotary_emb(x, positions[None])
        q, k = apply_rotary_pos_emb(q[None], k[None], cos, sin)
        return q[0], k[0], v

    def attend(
        self, q: Float[Tensor, "H L D"], k: Float[Tensor, "H_kv S D"], v: Float[Tensor, "H_kv S D"]
    ) -> Float[Tensor, "H L D"]:
        """Causal attention with grouped heads; the L queries are the last of the S positions."""
        num_queries, num_keys = q.shape[1], k.shape[1]
        visible = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        mask = None if num_queries == 1 else visible
        return torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, enable_gqa=True
        )[0]

    def finish(
        self, layer: int, x: Float[Tensor, "T hidden"], attended: Float[Tensor, "H T D"]
    ) -> Float[Tensor, "T hidden"]:
        """The rest of the layer: output projection and MLP, each added to what came in."""
        block = self.llama.model.layers[layer]
        x = x + block.self_attn.o_proj(attended.transpose(0, 1).flatten(1))
        return x + block.mlp(block.post_attention_layernorm(x))

    def logits(self, x: Float[Tensor, "T hidden"]) -> Float[Tensor, "T V"]:
        return self.llama.lm_head(self.llama.model.norm(x))


@cache
def smollm2_decoder() -> Decoder:
    """SmolLM2-135M-Instruct in parts."""
    return Decoder(smollm2()[0])
