"""The weights of a folder that stores linear layers in few bits, or whose linear layers are rounded when loaded."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.core.errors import ModelFolderError
from twophase.memory import free_host_memory_bytes
from twophase.model.config import ModelConfig
from twophase.model.linear import Linear
from twophase.model.tensor_files import EMBED, HEAD, StoredTensor, TensorFiles, has_safetensors
from twophase.model.weights import Cut, WeightLoader, expected_shapes
from twophase_features.quantization.checkpoint_config import CheckpointFormat
from twophase_features.quantization.checkpoints import is_quantized, read_weight, stored_tensors
from twophase_features.quantization.gguf_file import GGUFWeights, find_gguf
from twophase_features.quantization.linear import ConcatLinear, make_quantized_linear
from twophase_features.quantization.rounding import NotFiniteError, quantize
from twophase_features.quantization.schemes import Scheme, head_scheme
from twophase_features.quantization.weight import QuantizedWeight, can_stack, stack

PLAIN_MEMORY_FRACTION = 0.25  # share of the free host memory for a plain copy of quantised weights


class CheckpointWeights:
    """The tensors of safetensors files, of which some layers are stored in few bits. Read-only.

    Args:
        shapes: The shapes of all tensors of the unquantised model.
        checkpoint: How quantised layers are stored; None: all layers are plain.
    """

    def __init__(
        self, files: TensorFiles, shapes: Mapping[str, tuple[int, ...]], checkpoint: CheckpointFormat | None
    ) -> None:
        self.shapes = shapes
        self._files = files
        self._checkpoint = checkpoint
        expected: dict[str, StoredTensor] = {}
        for name, shape in shapes.items():
            if checkpoint is None or self.is_plain(name):
                expected[name] = StoredTensor(shape)
            else:
                expected |= stored_tensors(name.removesuffix(".weight"), shape, checkpoint, files)
        files.check(expected)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def read(self, name: str) -> Tensor | QuantizedWeight:
        if self._checkpoint is None or self.is_plain(name):
            return self._files.read(name)
        return read_weight(name.removesuffix(".weight"), self._checkpoint, self._files, self._files.read)

    def is_plain(self, name: str) -> bool:
        stem = name.removesuffix(".weight")
        return self._checkpoint is None or stem == name or not is_quantized(stem, self._files)

    def dtype_of(self, name: str) -> torch.dtype:
        return self._files.read(name).dtype if self.is_plain(name) else torch.float32


def open_tensors(folder: Path, config: ModelConfig) -> CheckpointWeights | GGUFWeights:
    """The folder's safetensors files, or the GGUF file in their place. Raises ModelFolderError as `load_weights`."""
    shapes = expected_shapes(config)
    gguf = None if has_safetensors(folder) else find_gguf(folder)
    if gguf is None:
        return CheckpointWeights(TensorFiles(folder), shapes, config.quantization)
    if config.norm_offset or config.experts is not None:
        raise ModelFolderError(f"{gguf}: {config.architecture} is not loaded from GGUF files. Use safetensors files.")
    return GGUFWeights(gguf, shapes)


class QuantizedLoader(WeightLoader):
    """Makes quantised layers, and plain layers where the weight is stored plain and no rounding is asked for.

    For arguments see `load_weights`. Raises ModelFolderError as `load_weights`.
    """

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        cut: Cut,
        scheme: Scheme | None,
    ) -> None:
        super().__init__(open_tensors(folder, config), dtype, device, cut)
        self._scheme = scheme
        in_plain = sum(math.prod(shape) for shape in self._files.shapes.values()) * dtype.itemsize
        self._keeps_plain = in_plain <= PLAIN_MEMORY_FRACTION * free_host_memory_bytes()

    def dtype_of(self, name: str) -> torch.dtype:
        dtype: torch.dtype = self._files.dtype_of(name)
        return dtype

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        stored = self._files.read(name)
        if isinstance(stored, QuantizedWeight):
            return stored.dequantize(dtype or self.dtype).to(self.device)
        return super().tensor(name, dtype)

    def linear(self, *names: str) -> Linear:
        if all(map(self._stays_plain, names)):
            return super().linear(*names)
        parts = [self._weight(f"{name}.weight") for name in names]
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if len(quantized) < len(parts) or not can_stack(quantized):
            return ConcatLinear(tuple(self.linear(name) for name in names))
        weight, bias = stack(quantized).to(self.device), self.bias(*names)
        return make_quantized_linear(weight, bias, self.dtype, self._keeps_plain)

    def head(self, name: str, embed: Float[Tensor, "V N"]) -> Linear:
        stem = name.removesuffix(".weight")
        return super().head(name, embed) if self._stays_plain(stem) else self.linear(stem)

    def _stays_plain(self, name: str) -> bool:
        return self._scheme is None and self._files.is_plain(f"{name}.weight")

    def _weight(self, name: str) -> Tensor | QuantizedWeight:
        """This process's part of a linear layer's weight, rounded if that is asked for: before it is cut, so that the
        codes do not depend on the number of processes."""
        stored = self._files.read(name)
        if self._scheme is not None:
            scheme = head_scheme(self._scheme) if name in (EMBED, HEAD) else self._scheme
            try:
                stored = quantize(stored, scheme)
            except NotFiniteError as error:
                raise ModelFolderError(f"{name}: {error}") from error
        part: Tensor | QuantizedWeight = self._cut(name, stored)
        return part
