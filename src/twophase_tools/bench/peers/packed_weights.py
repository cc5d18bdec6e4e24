"""A plain folder's linear layers rounded to 8 or 4 bits, as the compressed-tensors files that vLLM reads.

Symmetric rounding to nearest. Embeddings, norms and the output layer stay in bf16: vLLM has no fewer bits for an output
layer that shares its weights with the embeddings.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP_SIZE = 32  # weights with a scale of their own, in 4 bits
NAMES_OF_LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write(source: Path, folder: Path, bits: int) -> Path:
    """Write `folder` and return it. 8 bits: per output, and activations too; 4 bits: groups of `GROUP_SIZE`."""
    folder.mkdir()
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _quantization_config(bits)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tensors: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            if name.removesuffix(".weight").rpartition(".")[2] in NAMES_OF_LINEAR_LAYERS and weight.ndim == 2:
                tensors |= _eight_bits(name, weight) if bits == 8 else _four_bits(name, weight)
            else:
                tensors[name] = weight.bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _eight_bits(name: str, weight: Tensor) -> dict[str, Tensor]:
    scales = _scales(weight.float(), 127)
    codes = (weight.float() / scales.float()).round().clamp(-128, 127)
    return {name: codes.to(torch.int8), f"{name}_scale": scales}


def _four_bits(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Eight codes, shifted to 0..15, in an int32, the first in its lowest bits."""
    groups = weight.float().unflatten(1, (-1, GROUP_SIZE))
    scales = _scales(groups, 7)
    codes = ((groups / scales.float()).round().clamp(-8, 7) + 8).to(torch.int64).flatten(1).unflatten(1, (-1, 8))
    packed = (codes << (4 * torch.arange(8))).sum(-1)
    packed -= (packed >= 2**31).long() << 32  # an int32 of the same bits
    return {
        f"{name}_packed": packed.to(torch.int32),
        f"{name}_scale": scales.squeeze(-1),
        f"{name}_shape": torch.tensor(weight.shape),
    }


def _scales(values: Tensor, last: int) -> Tensor:
    """The largest magnitude along the last axis becomes the code `last`; in bf16, as they are stored. 1 for zeros."""
    scales = (values.abs().amax(-1, keepdim=True) / last).bfloat16()
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def _quantization_config(bits: int) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False}
    if bits == 8:
        weights |= {"strategy": "channel"}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    else:
        weights |= {"strategy": "group", "group_size": GROUP_SIZE}
        inputs = None
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if bits == 8 else "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
    }
