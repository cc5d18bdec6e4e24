"""A narrow Llama with random weights, in a folder, for checks that need a whole engine at once."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from twophase_labs.kit.models import saved

VOCAB = 131
NUM_LAYERS = 2


@cache
def tiny_llama(num_layers: int = NUM_LAYERS) -> tuple[Path, Any]:
    """Its folder, and the model itself as transformers runs it. Six heads of 16 read two KV heads.

    Weights are large enough for a peaky softmax, or attention could ignore Q and K unnoticed.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=2,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.5 if "embed" in name else 2 * parameter.shape[-1] ** -0.5)
    return saved(model), model
