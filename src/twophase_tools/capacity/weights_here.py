"""What a model's weights take on this machine, by its config.json: nothing is loaded."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from twophase.config import EngineConfig
from twophase.core.errors import ConfigError
from twophase.memory import free_host_memory_bytes
from twophase.model.config import load_config
from twophase.model.machine import resolve_device, resolve_dtype
from twophase.model.weights import has_quantized_weights
from twophase_features.quantization.loader import PLAIN_MEMORY_FRACTION
from twophase_tools.capacity.memory import host_weight_bytes, weight_bytes
from twophase_tools.capacity.units import GIB
from twophase_tools.simulate.model_shapes import ModelShape, model_shape


@dataclass(frozen=True, slots=True)
class WeightsHere:
    """Bytes of all weights of one engine.

    Attributes:
        dtype: What it computes in.
        num_bytes: Of the weights as they will be kept.
        lean_bytes: Without the plain copies that a CPU keeps of layers in 4 bits while there is memory for them.
        plain_bytes: Of the same weights in no fewer bits than `dtype` has.
        free_bytes: Of the device's memory now.
    """

    dtype: torch.dtype
    device: torch.device
    quantization: str | None
    num_bytes: int
    lean_bytes: int
    plain_bytes: int
    free_bytes: int

    @property
    def fits(self) -> bool:
        """Whether there is room for them, and for something besides."""
        return self.num_bytes < self.free_bytes

    def to_text(self) -> str:
        """'bfloat16, quantization=int4: 0.37 GiB of weights on cpu, 0.30 GiB if plain'."""
        name = str(self.dtype).removeprefix("torch.")
        if self.quantization is None:
            return f"{name}: {_gib(self.num_bytes)} of weights on {self.device}"
        copies = ""
        if self.lean_bytes < self.num_bytes:
            copies = f"; {_gib(self.lean_bytes)} without copies in {name}, kept while there is memory for them"
        return (
            f"{name}, quantization={self.quantization}: {_gib(self.num_bytes)} of weights on {self.device}, "
            f"{_gib(self.plain_bytes)} if plain{copies}"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"


def weights_here(folder: Path, config: EngineConfig) -> WeightsHere:
    """What `LLM(folder)` with these options would store, on one device.

    Raises:
        ModelFolderError: The folder has no config.json that can be read.
        ConfigError: The engine would refuse these options; or the model is one whose bytes are not known beforehand:
            a GGUF file, or layers of several kinds.
    """
    model, plain = load_config(folder), model_shape(str(folder))
    if model.quantization is None and has_quantized_weights(folder, model):
        raise ConfigError(f"{folder} has a GGUF file, in which each tensor has a format of its own.")
    reason = None if config.quantization is None else plain.why_not_quantized(config.quantization)
    if reason is not None:
        raise ConfigError(f"quantization={config.quantization!r} {reason}.")
    shape, device = plain.quantized(config.quantization), resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, model, device, shape.scheme is not None)
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        kept, whole = (weight_bytes(replace(each, value_bytes=dtype.itemsize), 1) for each in (shape, plain))
        return WeightsHere(dtype, device, config.quantization, kept, kept, whole, free)
    free = free_host_memory_bytes()
    has_room = _plain_bytes(plain, dtype) <= PLAIN_MEMORY_FRACTION * free
    kept, lean = (host_weight_bytes(shape, dtype, keeps_plain) for keeps_plain in (has_room, False))
    return WeightsHere(dtype, device, config.quantization, kept, lean, host_weight_bytes(plain, dtype, False), free)


def _plain_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """As the loader counts what plain copies would take: every tensor of the files."""
    return replace(shape, value_bytes=dtype.itemsize, scheme=None).memory_bytes
