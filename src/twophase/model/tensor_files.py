"""A model folder's safetensors files, opened and checked: an error names the file, the tensor and the fix."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.core.rules import shown
from twophase.model.json_file import read_json_object

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PLAIN_DTYPES = ("F32", "F16", "BF16")  # as safetensors names them
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Old Llama files have the RoPE frequencies; files of tied models may have the output weights, which `check` compares.
HARMLESS = (".rotary_emb.inv_freq", HEAD)
FIX = "Download the model again."


class StoredTensor(NamedTuple):
    """A tensor of a folder: its shape, and the dtypes it may have, as safetensors names them."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = PLAIN_DTYPES


class TensorFiles:
    """The safetensors files of a folder, opened. They are mapped: a tensor is a view, read when it is copied. Raises
    ModelFolderError if a file is missing, truncated or not a safetensors file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path_of: dict[str, Path] = {}
        self._open: dict[Path, safe_open] = {}
        for path in _weight_paths(folder):
            try:
                self._open[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelFolderError(
                    f"{path} cannot be read: it is truncated or not a safetensors file ({error}). {FIX}"
                ) from error
            self._path_of |= dict.fromkeys(self._open[path].keys(), path)

    def __contains__(self, name: object) -> bool:
        return name in self._path_of

    def read(self, name: str) -> Tensor:
        """The tensor as stored."""
        return self._open[self._path_of[name]].get_tensor(name)

    def check(self, expected: Mapping[str, StoredTensor]) -> None:
        """Raises ModelFolderError unless the files hold exactly these tensors, in these shapes and dtypes."""
        missing = [name for name in expected if name not in self]
        if missing:
            where = ", ".join(path.name for path in self._open)
            raise ModelFolderError(
                f"{self._folder}: {where} lacks {_first_of(missing)}, which config.json calls for. {FIX}"
            )
        extra = [name for name in self._path_of if name not in expected and not name.endswith(HARMLESS)]
        if extra:
            raise ModelFolderError(
                f"{self._path_of[extra[0]]} holds {_first_of(extra)}, which config.json does not call for. "
                f"The two files belong to different models, or the model has a part that is not supported. {FIX}"
            )
        for name, (shape, dtypes) in expected.items():
            path, stored = self._path_of[name], self._open[self._path_of[name]].get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ModelFolderError(
                    f"{path}: {name} has shape {stored.get_shape()}, but config.json calls for {list(shape)}. {FIX}"
                )
            if stored.get_dtype() not in dtypes:
                raise ModelFolderError(
                    f"{path}: {name} is stored as {stored.get_dtype()}; supported here: {', '.join(dtypes)}. "
                    "Use the unquantised model."
                )
        if HEAD in self and HEAD not in expected and not torch.equal(self.read(HEAD), self.read(EMBED)):
            raise ModelFolderError(
                f"{self._path_of[HEAD]}: {HEAD} differs from {EMBED}, but config.json says tie_word_embeddings. "
                "Set it to false there if the model really has its own output weights."
            )


def has_safetensors(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))


def _weight_paths(folder: Path) -> list[Path]:
    """The single file, or every shard the index names."""
    index = folder / INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file():  # as in transformers: an index beside it belongs to other weights
        return [folder / WEIGHTS_FILE]
    if not index.is_file():
        raise ModelFolderError(
            f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}. Only safetensors weights are loaded: "
            "choose a model that has them, or save it again with transformers' save_pretrained."
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFolderError(f"{index} has no 'weight_map' from tensor names to files. {FIX}")
    for tensor, name in weight_map.items():
        # A plain name: an untrusted model must not open other files of this machine. The file may be a link (Hugging
        # Face's cache has links): only the owner of the folder can have made it.
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name or "\\" in name:
            raise ModelFolderError(
                f"{index}: 'weight_map' must name a safetensors file in the same folder for each tensor; found "
                f"{shown(name)} for {shown(tensor)}. {FIX}"
            )
        if not (folder / name).is_file():
            raise ModelFolderError(f"{folder / name} is missing; {index.name} says it holds {tensor}. {FIX}")
    return [folder / name for name in sorted(set(weight_map.values()))]


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
