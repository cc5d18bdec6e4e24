"""Tiny random models of every supported family, written as Hugging Face folders by transformers itself."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from twophase.model import config
from twophase.model.config import load_config
from twophase.model.llama import LlamaModel, model_backend
from twophase.model.machine import make_backend
from twophase.model.weights import load_weights
from twophase_features import families, gemma3
from twophase_features.experts import config as expert_configs
from twophase_features.windows import layer_types

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = 12
MIXED = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
GEMMA3 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 12,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}

FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": (LlamaConfig, {"head_dim": 16, "num_key_value_heads": 6}),
    "smollm2": (
        LlamaConfig,
        {"tie_word_embeddings": True, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "llama3-rope": (LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "num_key_value_heads": 1}),
    "linear-rope": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": (MistralConfig, {"sliding_window": WINDOW}),
    "mistral-no-window": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {}),
    "qwen2-tied": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-window": (Qwen2Config, {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3-tied": (Qwen3Config, {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2-mixed": (Qwen2Config, MIXED),
    "qwen3-mixed": (Qwen3Config, MIXED | {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    "gemma3": (Gemma3TextConfig, GEMMA3),
    "gemma3-sliding": (Gemma3TextConfig, GEMMA3 | {"layer_types": ["sliding_attention"] * 6}),
    "gemma3-full": (Gemma3TextConfig, GEMMA3 | {"layer_types": ["full_attention"] * 6, "tie_word_embeddings": False}),
}

QWEN3_MOE = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
FAMILIES |= {
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": (MixtralConfig, {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": WINDOW}),
    "qwen3-moe": (Qwen3MoeConfig, QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3-moe-some-dense": (
        Qwen3MoeConfig,
        QWEN3_MOE | {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3], "attention_bias": True},
    ),
    "qwen3-moe-window": (
        Qwen3MoeConfig,
        QWEN3_MOE | {"use_sliding_window": True, "sliding_window": WINDOW, "tie_word_embeddings": True},
    ),
}


def config_readers() -> str:
    """The text of every module that reads config.json."""
    return "".join(map(inspect.getsource, (config, families, layer_types, gemma3, expert_configs)))


def make_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model in fp32. Norm gains and biases are random too: at their initial 1 and 0 they would hide bugs."""
    config_class, differences = FAMILIES[family]
    config = config_class(**(SIZES | differences | changes), attn_implementation="eager", dtype="float32")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
            else:
                # Scores with a deviation of 4 make the softmax peaky: with tiny ones, attention could ignore Q and K unnoticed.
                parameter.normal_(std=0.5 if "embed" in name else 2 * parameter.shape[-1] ** -0.5)
    return model


def make_folder(family: str, folder: Path, seed: int = 0, **changes: Any) -> tuple[Path, PreTrainedModel]:
    """The model saved in `folder`, and the model itself as the oracle."""
    model = make_model(family, seed, **changes)
    model.save_pretrained(folder)
    return folder, model


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    attention_backend: str = "torch",
    block_size: int = 4,
) -> LlamaModel:
    """A folder opened without an engine around it."""
    config = load_config(folder)
    make = partial(make_backend, attention_backend, device=device, dtype=dtype, block_size=block_size)
    return LlamaModel(config, load_weights(folder, config, dtype, device), model_backend(config, make))
