"""Folders of quantised weights as the tools write them, number by number: an independent reading of their formats."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.model.tiny import make_folder

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
NIBBLES_OF_AWQ = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}  # output in its eight -> place in the word


@dataclass
class Rounded:
    """Codes and zero points from 0; `group_of` says which group each input belongs to."""

    codes: np.ndarray  # [O, I]
    scales: np.ndarray  # [O, G], float16
    zeros: np.ndarray  # [O, G]
    group_of: np.ndarray  # [I]
    bits: int

    @property
    def weight(self) -> np.ndarray:
        """What the layer multiplies by."""
        scales = self.scales.astype(np.float32)[:, self.group_of]
        return scales * (self.codes - self.zeros[:, self.group_of]).astype(np.float32)


def round_weight(weight, bits, group_size, symmetric, shuffled=False) -> Rounded:
    """Not the best rounding, but one with every code and a zero point of its own for each group."""
    num_outputs, num_inputs = weight.shape
    size = group_size or num_inputs
    group_of = np.arange(num_inputs) // size
    if shuffled:
        group_of = np.random.default_rng(0).permutation(group_of)
    num_groups, last = num_inputs // size, 2**bits - 1
    codes = np.zeros(weight.shape, dtype=np.int64)
    scales = np.zeros((num_outputs, num_groups), dtype=np.float16)
    zeros = np.full((num_outputs, num_groups), (last + 1) // 2)
    for group in range(num_groups):
        part = weight[:, group_of == group]
        low, high = part.min(axis=1), part.max(axis=1)
        reach = 2 * np.abs(part).max(axis=1) if symmetric else high - low
        scales[:, group] = reach / last
        scale = scales[:, group, None].astype(np.float32)
        if not symmetric:
            zeros[:, group] = np.clip(np.round(-low / scale[:, 0]), 1, last)
        codes[:, group_of == group] = np.clip(np.round(part / scale) + zeros[:, group, None], 0, last)
    return Rounded(codes, scales, zeros, group_of, bits)


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 words along the last axis, the first code in the lowest bits."""
    per_word = 32 // bits
    groups = codes.reshape(*codes.shape[:-1], -1, per_word).astype(np.uint64)
    packed = sum(groups[..., place] << np.uint64(place * bits) for place in range(per_word))
    return packed.astype(np.uint32).view(np.int32)


def awq(stem: str, layer: Rounded) -> dict[str, np.ndarray]:
    def along_outputs(values: np.ndarray) -> np.ndarray:  # [n, O] -> [n, O / 8]
        in_places = np.empty_like(values)
        for output in range(values.shape[1]):
            in_places[:, output // 8 * 8 + NIBBLES_OF_AWQ[output % 8]] = values[:, output]
        return words(in_places, 4)

    return {
        f"{stem}.qweight": along_outputs(layer.codes.T),
        f"{stem}.qzeros": along_outputs(layer.zeros.T),
        f"{stem}.scales": layer.scales.T,
    }


def gptq(stem: str, layer: Rounded, shift: int = 1) -> dict[str, np.ndarray]:
    return {
        f"{stem}.qweight": words(layer.codes, layer.bits).T,
        f"{stem}.qzeros": words(layer.zeros.T - shift, layer.bits),
        f"{stem}.scales": layer.scales.T,
        f"{stem}.g_idx": layer.group_of.astype(np.int32),
    }


def gptq_v2(stem: str, layer: Rounded) -> dict[str, np.ndarray]:
    return gptq(stem, layer, shift=0)


def packed(stem: str, layer: Rounded) -> dict[str, np.ndarray]:
    """compressed-tensors, pack-quantized."""
    tensors = {
        f"{stem}.weight_packed": words(layer.codes, layer.bits),
        f"{stem}.weight_scale": layer.scales,
        f"{stem}.weight_shape": np.array(layer.codes.shape, dtype=np.int64),
    }
    if (layer.zeros != 2 ** (layer.bits - 1)).any():
        tensors[f"{stem}.weight_zero_point"] = words(layer.zeros.T, layer.bits).T
    if (np.diff(layer.group_of) < 0).any():
        tensors[f"{stem}.weight_g_idx"] = layer.group_of.astype(np.int32)
    return tensors


def whole_bytes(stem: str, layer: Rounded) -> dict[str, np.ndarray]:
    """compressed-tensors, int-quantized."""
    tensors = {f"{stem}.weight": (layer.codes - 128).astype(np.int8), f"{stem}.weight_scale": layer.scales}
    if (layer.zeros != 128).any():
        tensors[f"{stem}.weight_zero_point"] = (layer.zeros - 128).astype(np.int8)
    return tensors


def compressed_config(name: str, bits: int, group_size: int | None, symmetric: bool, **weights: Any) -> dict[str, Any]:
    strategy = {"strategy": "channel"} if group_size is None else {"strategy": "group", "group_size": group_size}
    how = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, **strategy, **weights}
    group = {"targets": ["Linear"], "weights": how, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def write(
    folder: Path,
    config: dict[str, Any],
    store: Callable[[str, Rounded], dict[str, np.ndarray]],
    bits: int = 4,
    group_size: int | None = 32,
    symmetric: bool = False,
    shuffled: bool = False,
    family: str = "llama-biases",
) -> Any:
    """A random model, its linear layers stored in few bits; returns transformers' model with the same values."""
    _, oracle = make_folder(family, folder, **SIZES)
    tensors = load_file(folder / "model.safetensors")
    state = oracle.state_dict()
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        layer = round_weight(tensors.pop(name).numpy(), bits, group_size, symmetric, shuffled)
        _place_of(name, state).copy_(torch.from_numpy(layer.weight))
        stored = store(name.removesuffix(".weight"), layer)
        tensors |= {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in stored.items()}
    save_file(tensors, folder / "model.safetensors")
    say(folder, config)
    return oracle


def _place_of(name: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Where transformers has a layer's weight: those of experts stacked, gate and up in one."""
    if ".experts." not in name:
        return state[name]
    block, rest = name.split(".experts.")
    number, layer, _ = rest.split(".")
    if layer == "down_proj":
        return state[f"{block}.experts.down_proj"][int(number)]
    return state[f"{block}.experts.gate_up_proj"][int(number)].chunk(2)[layer == "up_proj"]


def say(folder: Path, quantization_config: Any) -> None:
    """Put it into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization_config}))
