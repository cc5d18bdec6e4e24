"""The opening of lab 2 and its end: the same text read at once, and token by token; by transformers, and with a
learner's attention in every layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine import kernels as kernels  # before transformers: it decides how kernels run

PAGE_OF_TEXT = (
    "A prompt is a text that is known before the work begins. Nothing in it has to be waited for, so the model may "
    "look at all of it in one go: every word at the same time, each with the words before it in view. The answer is "
    "another matter. Its words are chosen one after the other, and the second cannot be chosen before the first. "
)


BLOCK_SIZE = 16


def text_ids(tokenizer: Any, num_tokens: int) -> Tensor:
    """The first tokens of a page of prose."""
    return tokenizer(4 * PAGE_OF_TEXT, return_tensors="pt").input_ids[0, :num_tokens]


@torch.no_grad()
def read_at_once(model: Any, ids: Tensor) -> Tensor:
    """Logits [T, V] of one pass over all tokens."""
    return model(ids[None]).logits[0]


@torch.no_grad()
def read_one_by_one(model: Any, ids: Tensor) -> Tensor:
    """The same logits from T passes of one token each, with transformers' KV cache, so that nothing is done twice."""
    cache, rows = None, []
    for token in ids:
        output = model(token[None, None], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0])
    return torch.cat(rows)


@torch.no_grad()
def read_in_chunks(model: Any, ids: Tensor, prefill_chunk: Callable[..., Tensor], size: int) -> Tensor:
    """The same logits, `size` tokens at a time, with `prefill_chunk` as the attention of every layer, over pages.

    The other parts of a layer are the model's own.
    """
    config, llama = model.config, model.model
    num_kv_heads, head_dim = config.num_key_value_heads, llama.layers[0].self_attn.head_dim
    num_pages = -(-len(ids) // BLOCK_SIZE)
    table = torch.randperm(num_pages, generator=torch.Generator().manual_seed(0)).int()
    caches = torch.zeros(len(llama.layers), 2, num_pages, num_kv_heads, BLOCK_SIZE, head_dim)
    theta, rows = float(config.rope_parameters["rope_theta"]), []
    for first in range(0, len(ids), size):
        x = llama.embed_tokens(ids[first : first + size])
        for layer, (k_cache, v_cache) in zip(llama.layers, caches, strict=True):
            attention, h = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (
                project(h).view(len(x), -1, head_dim)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            heads = prefill_chunk(q, k, v, k_cache, v_cache, table, first, theta, head_dim**-0.5)
            x = x + attention.o_proj(heads.flatten(1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        rows.append(model.lm_head(llama.norm(x)))
    return torch.cat(rows)
