"""The default model as llama.cpp reads it: a package ships it in 4 bits; the same weights are written in other types.

The shipped file is what the default model's folder was made from, so all contenders have the same weights: a folder
rounds what is in the file to bf16, and so does `write` before it encodes anything.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twophase_features.model_store.prepare import DEFAULT_MODEL, GGUF_FILE, INSTALL, PACKAGE, default_model_dir
from twophase_tools.bench.peers.process import NotRunError

SHIPPED = "Q4_1"  # of the linear layers; the embeddings are Q8_0, norms F32


def find(folder: str, kind: str, workshop: Path) -> Path:
    """The model of `folder` as a GGUF file whose matrices have that type; written to `workshop` if it is not shipped.

    Raises:
        NotRunError: It is not the default model, or its package is not installed.
    """
    if Path(folder) != default_model_dir():
        raise NotRunError(f"llama.cpp reads GGUF files, and only {DEFAULT_MODEL} comes as one")
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = [] if spec is None else spec.submodule_search_locations or []
    shipped = [path for path in (Path(place) / GGUF_FILE for place in places) if path.is_file()]
    if not shipped:
        raise NotRunError(f"the model's GGUF file comes in the package {PACKAGE}, which is not installed: {INSTALL}")
    if kind == SHIPPED:
        return shipped[0]
    path = workshop / f"{kind}.gguf"
    if not path.exists():
        write(shipped[0], path, kind)
    return path


def write(source: Path, path: Path, kind: str) -> None:
    """A copy with all metadata in which every matrix has the type `kind`: 'F32', 'F16', 'BF16' or 'Q8_0'."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", "general.file_type")):  # the writer's own
            _copy_field(field, writer)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    for tensor in reader.tensors:
        values = np.require(gguf.dequantize(tensor.data, tensor.tensor_type), requirements="W")
        if values.ndim == 1:  # gains of norms, which stay as they are
            writer.add_tensor(tensor.name, values)
            continue
        type_ = gguf.GGMLQuantizationType[kind]
        rounded = torch.from_numpy(values).bfloat16().float().numpy()
        writer.add_tensor(tensor.name, gguf.quantize(rounded, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(field: Any, writer: Any) -> None:
    element = field.types[-1] if len(field.types) > 1 else None  # of an array
    writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
