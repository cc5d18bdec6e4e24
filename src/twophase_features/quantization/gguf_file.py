"""A GGUF file as a model folder's weights: quantised tensors stay as they are stored.

The folder has config.json and a tokenizer beside the file, as Hugging Face's folders do.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase_features.quantization.gguf_blocks import BLOCK_TYPES, read_blocks
from twophase_features.quantization.weight import QuantizedWeight

# GGUF name -> Hugging Face name, of the tensors inside `blk.{layer}.` / `model.layers.{layer}.`.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# llama.cpp reorders the query and key rows of the first families, and keeps Hugging Face's order for the others.
REORDERED, IN_ORDER = ("llama",), ("qwen2", "qwen3")
# Tensors of newer files that the model does not need: RoPE frequencies, which config.json determines.
HARMLESS = ("rope_freqs.weight",)


def find_gguf(folder: Path) -> Path | None:
    """The GGUF file of a folder, or None. Raises ModelFolderError if there are several."""
    found = sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        raise ModelFolderError(f"{folder} holds {len(found)} GGUF files ({found[0].name}, ...); leave the one to load.")
    return found[0] if found else None


class GGUFWeights:
    """The tensors of a GGUF file under their Hugging Face names, checked against the shapes expected. Read-only."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._path = path
        reader = open_gguf(path)
        architecture = field_of(reader, "general.architecture")
        if architecture not in (*REORDERED, *IN_ORDER):
            raise ModelFolderError(
                f"{path}: GGUF files of the architecture {architecture!r} are not loaded, only of "
                f"{', '.join((*REORDERED, *IN_ORDER))}. Use the folder of safetensors files."
            )
        self._heads = {}
        if architecture in REORDERED:
            num_heads = int(field_of(reader, f"{architecture}.attention.head_count"))
            num_kv_heads = int(field_of(reader, f"{architecture}.attention.head_count_kv"))
            self._heads = {"q_proj": num_heads, "k_proj": num_kv_heads}
        self._tensors = {self._name(tensor.name): tensor for tensor in reader.tensors if tensor.name not in HARMLESS}
        self._check()

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def read(self, name: str) -> Tensor | QuantizedWeight:
        """The tensor as stored."""
        tensor = self._tensors[name]
        kind, layer = tensor.tensor_type.name, name.split(".")[-2]
        if kind in PLAIN_TYPES:
            data = torch.from_numpy(np.require(tensor.data, requirements="W"))
            plain = data.view(PLAIN_TYPES[kind]).reshape(self.shapes[name])
            return to_half_split(plain, self._heads[layer]) if layer in self._heads else plain
        rows = torch.from_numpy(np.require(tensor.data, np.uint8, requirements="W")).view(self.shapes[name][0], -1)
        return read_blocks(to_half_split(rows, self._heads[layer]) if layer in self._heads else rows, kind)

    def is_plain(self, name: str) -> bool:
        return self._tensors[name].tensor_type.name in PLAIN_TYPES

    def dtype_of(self, name: str) -> torch.dtype:
        """A plain tensor's stored dtype; float32 for a quantised one, which holds its values exactly."""
        return PLAIN_TYPES.get(self._tensors[name].tensor_type.name, torch.float32)

    def _name(self, gguf_name: str) -> str:
        try:
            return hugging_face_name(gguf_name)
        except KeyError:
            raise ModelFolderError(
                f"{self._path} holds {gguf_name}, which is of a part of a model that is not supported in GGUF files. "
                "Use the folder of safetensors files."
            ) from None

    def _check(self) -> None:
        for name in self.shapes:
            if name not in self._tensors:
                raise ModelFolderError(f"{self._path} lacks {name}, which config.json calls for.")
        for name, tensor in self._tensors.items():
            if name not in self.shapes:
                raise ModelFolderError(f"{self._path} holds {name}, which config.json does not call for.")
            found, expected = tuple(int(size) for size in reversed(tensor.shape)), self.shapes[name]
            if found != expected:
                raise ModelFolderError(
                    f"{self._path}: {name} has shape {list(found)}, but config.json calls for {list(expected)}."
                )
            kind = tensor.tensor_type.name
            if kind not in PLAIN_TYPES and kind not in BLOCK_TYPES:
                raise ModelFolderError(
                    f"{self._path}: {name} is stored as {kind}; supported: {', '.join((*PLAIN_TYPES, *BLOCK_TYPES))}. "
                    "Use a file of another type, such as Q4_K_M or Q8_0."
                )


def hugging_face_name(gguf_name: str) -> str:
    """The GGUF name of a weight or a bias. Raises KeyError if a model of these families has no such tensor."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    parts = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if parts is None:
        raise KeyError(gguf_name)
    return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.{kind}"


def open_gguf(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, KeyError, IndexError, OSError, OverflowError) as error:
        raise ModelFolderError(f"{path} cannot be read as a GGUF file ({error}). Download it again.") from error


def field_of(reader: Any, name: str) -> Any:
    if name not in reader.fields:
        raise ModelFolderError(f"{reader.data.filename}: the field {name} is missing. Download it again.")
    return reader.fields[name].contents()


def to_half_split(rows: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's order of query and key rows.

    GGUF keeps the two members of a RoPE pair side by side (rows 0 and 1 of a head), Hugging Face half a head apart.
    For D = 4 the GGUF row order 0 2 1 3 becomes 0 1 2 3. (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.)
    """
    by_pair = rows.unflatten(0, (num_heads, -1, 2))
    return by_pair.transpose(1, 2).flatten(0, 2)
