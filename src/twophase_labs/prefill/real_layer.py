"""One attention layer of a transformers model: its weights, what went in, what came out."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """What attention needs to know of a layer. Weights stand so that `x @ w` projects.

    Attributes:
        w_q: [hidden, H * D]; w_k and w_v: [hidden, H_kv * D]; w_o: [H * D, hidden].
        theta: Base of the rotation's frequencies.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    num_heads: int
    num_kv_heads: int
    head_dim: int
    theta: float


def layer_of(model: Any, index: int) -> Layer:
    """Layer `index` of a Llama-like transformers model."""
    attention, config = model.model.layers[index].self_attn, model.config
    return Layer(
        attention.q_proj.weight.T,
        attention.k_proj.weight.T,
        attention.v_proj.weight.T,
        attention.o_proj.weight.T,
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        float(config.rope_parameters["rope_theta"]),
    )


@torch.no_grad()
def watch_layer(model: Any, index: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Input and output [L, hidden] of that layer's attention while the model reads `ids`."""
    seen: list[tuple[Tensor, Tensor]] = []

    def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        seen.append((kwargs["hidden_states"][0].clone(), output[0][0].clone()))

    handle = model.model.layers[index].self_attn.register_forward_hook(note, with_kwargs=True)
    try:
        model(ids[None], logits_to_keep=1)
    finally:
        handle.remove()
    return seen[0]


@torch.no_grad()
def layer_queries_keys(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [L, H, D] and keys [L, H_kv, D] of a layer, not rotated yet."""
    q, k = x @ layer.w_q, x @ layer.w_k
    return q.view(len(x), layer.num_heads, -1), k.view(len(x), layer.num_kv_heads, -1)


def head_weights(q: Tensor, k: Tensor, head: int) -> Tensor:
    """Attention weights [L, L] of one query head, from rotated queries [L, H, D] and keys [L, H_kv, D]."""
    kv_head = head // (q.shape[1] // k.shape[1])
    scores = q[:, head] @ k[:, kv_head].mT / q.shape[-1] ** 0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)
