"""Mistral (arXiv:2310.06825), Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388): Llama with windows, with biases of
Q, K and V, and with normalised queries and keys."""

from twophase.doors import feature
from twophase.model.config import Family, num_layers_of, read_attention_bias, read_rope
from twophase.model.json_file import Fields, JsonFile


def read_given_window(file: JsonFile) -> Fields:
    """A window for all layers, in `sliding_window` if at all."""
    return _read_layer_types(file, has_window=file.values.get("sliding_window") is not None)


def read_switched_window(file: JsonFile) -> Fields:
    """A window in `sliding_window`, behind `use_sliding_window`."""
    file.whole_number("max_window_layers")
    if file.values["sliding_window"] is not None:
        file.positive_int("sliding_window")
    return _read_layer_types(file, has_window=file.flag("use_sliding_window"))


def _read_layer_types(file: JsonFile, has_window: bool) -> Fields:
    all_full = ["full_attention"] * num_layers_of(file)
    if not has_window and file.values.get("layer_types") in (None, all_full):
        return {}
    fields: Fields = feature("windows.layer_types").read(file)
    return fields


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
