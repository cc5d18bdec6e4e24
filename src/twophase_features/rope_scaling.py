"""RoPE scaled to longer contexts than a model was first trained for. Nothing heavy is imported."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twophase.core.rules import shown
from twophase.model.json_file import POSITIVE_NUMBER, JsonFile


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Divides every frequency by `factor` (arXiv:2306.15595)."""

    factor: float

    def __call__(self, inv_freq: Any) -> Any:
        return inv_freq / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: slow pairs turn `factor` times slower, fast pairs are unchanged, others blended.

    A pair is slow if a full rotation takes more than original context / low_freq_factor positions, fast if it takes
    less than original context / high_freq_factor. (Meta, llama-models, models/llama3/model.py, apply_scaling.)
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int | float

    def __call__(self, inv_freq: Any) -> Any:
        turns = self.original_max_position_embeddings * inv_freq / (2 * math.pi)  # in the original context
        fast = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        fast = fast.clamp(0, 1)  # 0: slow pair, 1: fast pair
        return (1 - fast) * inv_freq / self.factor + fast * inv_freq


Scaling = LinearScaling | Llama3Scaling
TYPES: Mapping[str, type[Scaling]] = {"linear": LinearScaling, "llama3": Llama3Scaling}


def scaling_of(file: JsonFile, rope_type: Any, parameters: Mapping[str, Any]) -> Scaling:
    """The scaling that RoPE parameters ask for. Raises ModelFolderError for a type or number that is not supported."""
    if rope_type not in tuple(TYPES):
        raise file.error(
            f"RoPE type {shown(rope_type)} is not supported; supported: 'default', 'linear', 'llama3'. "
            "Removing the scaling from the file limits the model to the context it was first trained for."
        )
    given = {"original_max_position_embeddings": file.values.get("max_position_embeddings"), **parameters}
    kind = TYPES[rope_type]
    scaling = kind(*(file.checked(f"rope {key}", given.get(key), POSITIVE_NUMBER) for key in kind.__slots__))
    if isinstance(scaling, Llama3Scaling) and scaling.low_freq_factor >= scaling.high_freq_factor:
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        raise file.error(f"rope low_freq_factor {low} must be below high_freq_factor {high}.")
    return scaling
