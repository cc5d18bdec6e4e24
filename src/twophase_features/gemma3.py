"""Gemma 3 (arXiv:2503.19786): norms by 1 + gain, and after attention and MLP too, GELU, scaled embeddings, and layers
that see a window between layers that see all keys, each kind with a RoPE of its own."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from twophase.core.rules import shown
from twophase.model.config import Family, RopeConfig, num_layers_of, read_attention_bias, rope_of
from twophase.model.json_file import Fields, JsonFile, KeyRule
from twophase_features.windows.layer_types import FULL, LAYER_TYPES, SLIDING, fields_of, given_types


def read_layers(file: JsonFile) -> Fields:
    """The kind of each layer, and the RoPE of each kind."""
    pattern = file.positive_int("sliding_window_pattern")  # every pattern-th layer sees all keys
    default = [SLIDING if (layer + 1) % pattern else FULL for layer in range(num_layers_of(file))]
    given = given_types(file)
    types = default if given is None else given
    full, local = _ropes(file)
    ropes = {"rope": full, "local_rope": local}
    if len(set(types)) == 1:
        ropes = {"rope": full if types[0] == FULL else local}
    return fields_of(file, types) | ropes


def _ropes(file: JsonFile) -> tuple[RopeConfig, RopeConfig]:
    """RoPE of the layers that see all keys, and of the sliding layers.

    In older files the base of sliding layers is `rope_local_base_freq`, and their positions are not scaled; in newer
    ones `rope_parameters` has an entry for each type of layer.
    """
    scaling, parameters = file.values.get("rope_scaling"), file.values.get("rope_parameters")
    if scaling and parameters is None and "rope_type" not in scaling:
        raise file.error(f"rope_scaling must say its 'rope_type', found {shown(scaling)}.")
    if parameters is None:
        parameters = {"full_attention": scaling or {}, "sliding_attention": {}}
    elif scaling is not None:
        raise file.error("rope_scaling beside rope_parameters is not supported: they are two forms of one thing.")
    if not isinstance(parameters, dict) or not set(parameters) <= set(LAYER_TYPES):
        raise file.error(
            f"rope_parameters must have RoPE parameters for {', '.join(LAYER_TYPES)}; found {shown(parameters)}."
        )
    full, local = (
        rope_of(file, parameters.get(kind) or {}, base)
        for kind, base in zip(LAYER_TYPES, ("rope_theta", "rope_local_base_freq"), strict=True)
    )
    return full, local


def read_scales(file: JsonFile) -> Fields:
    return {
        "attention_scale": file.positive_int("query_pre_attn_scalar") ** -0.5,
        "embed_scale": file.positive_int("hidden_size") ** 0.5,
    }


def gelu_mul(gate_up: Float[Tensor, "T two_I"]) -> Float[Tensor, "T two_I//2"]:
    """gelu(gate) * up, for gate and up side by side (GEGLU, arXiv:2002.05202), by the approximation with tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


FAMILIES = {
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        (read_layers, read_attention_bias, read_scales),
        {"qk_norm": True, "activation": "gelu_tanh", "norm_offset": 1.0, "has_output_norms": True},
        {
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        (KeyRule("hidden_activation", ("gelu_pytorch_tanh",), "is not supported; supported: 'gelu_pytorch_tanh'."),),
    )
}
