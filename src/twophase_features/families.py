"""Mistral (arXiv:2310.06825), Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388): Llama with windows, with biases of
Q, K and V, and with normalised queries and keys."""

from twophase.model.config import Family, read_attention_bias, read_rope
from twophase_features.windows.layer_types import read_given_window, read_switched_window

WINDOW_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
FAMILIES = {
    "MistralForCausalLM": Family(
        "mistral", (read_rope, read_given_window), defaults={"head_dim": None, "sliding_window": 4096}
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2", (read_rope, read_switched_window), {"qkv_bias": True}, defaults=WINDOW_DEFAULTS
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        (read_rope, read_attention_bias, read_switched_window),
        {"qk_norm": True},
        defaults=WINDOW_DEFAULTS | {"head_dim": 128},
    ),
}
