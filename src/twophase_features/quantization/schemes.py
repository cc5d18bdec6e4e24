"""How weights are rounded when a model is loaded: the names that `quantization=` takes. Nothing heavy is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twophase.core.errors import ConfigError

SCALE_BYTES = 2  # bytes of a scale or a minimum in files and for a CPU's operator: 16 bits
GPU_SCALE_BYTES = 4  # the same in layers on a GPU: float32, since 16 bits cannot hold a minimum


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to round the weights [O, I] of a linear layer.

    Attributes:
        bits: Bits per code.
        group_size: Neighbours along I that share a scale; None: all weights of an output.
        is_symmetric: Codes lie on both sides of zero, and no minimum is stored.
        is_float: Codes are e4m3 numbers (arXiv:2209.05433) instead of integers.
        activations: The type to which a layer's input is rounded, with a scale per token; None: not rounded.
    """

    bits: int
    group_size: int | None = None
    is_symmetric: bool = True
    is_float: bool = False
    activations: str | None = None

    def num_bytes(self, num_outputs: int, num_inputs: int, scale_bytes: int = SCALE_BYTES) -> int:
        """Bytes of a layer's codes, scales and minima.

        Worked example: 4 bits in asymmetric groups of 32, 8 outputs, 64 inputs: 256 of codes, 16 scales and 16 minima
        of 2 bytes, 320 in all.
        """
        num_groups = 1 if self.group_size is None else -(-num_inputs // self.group_size)
        return num_outputs * (num_inputs * self.bits // 8 + num_groups * scale_bytes * (2 - self.is_symmetric))


SCHEMES: Mapping[str, Scheme] = {
    "int8": Scheme(8),
    "int8_dynamic": Scheme(8, activations="int8"),
    "int4": Scheme(4, 32, is_symmetric=False),
    "int4_g64": Scheme(4, 64, is_symmetric=False),
    "int4_g128": Scheme(4, 128, is_symmetric=False),
    "int4_sym": Scheme(4, 32),
    "int4_g64_sym": Scheme(4, 64),
    "int4_g128_sym": Scheme(4, 128),
    "fp8": Scheme(8, is_float=True, activations="fp8"),
}


def scheme_for(option: str, folder: Path, is_quantized: bool) -> Scheme:
    """The scheme of `quantization=option`, for weights in `folder`. Raises ConfigError if the weights are quantised
    already (`is_quantized`)."""
    if is_quantized:
        raise ConfigError(
            f"quantization={option!r} rounds plain weights, but the weights in {folder} are already quantised: "
            f"leave it out."
        )
    return SCHEMES[option]


def head_scheme(scheme: Scheme) -> Scheme:
    """The scheme of the last linear layer: 8 bits at least, because its errors go straight into the logits."""
    return SCHEMES["int8"] if scheme.bits < 8 else scheme
