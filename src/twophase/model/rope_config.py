"""The parameters of rotary position embedding (RoPE), and the forms in which a config.json has them."""

from dataclasses import dataclass
from typing import Any, Literal

from twophase.core.rules import shown
from twophase.model.json_file import Fields, JsonFile

RopeType = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (RoPE, arXiv:2104.09864) and its scaling for longer contexts.

    Attributes:
        theta: Base of the geometric series of wavelengths.
        rope_type: 'default'; 'linear' divides every frequency by `factor` (arXiv:2306.15595);
            'llama3' divides only the low ones (see `rope.py`).
        factor: The scaling factor, >= 1.
        low_freq_factor, high_freq_factor, original_max_position_embeddings: 'llama3' only.
    """

    theta: float
    rope_type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


def read_rope(file: JsonFile) -> Fields:
    """Older files have `rope_theta` and `rope_scaling` (with `type` or `rope_type`), newer ones `rope_parameters`."""
    either = file.values.get("rope_scaling") or file.values.get("rope_parameters")
    return {"rope": rope_of(file, {} if either is None else either, "rope_theta")}


def rope_of(file: JsonFile, parameters: Any, base: str) -> RopeConfig:
    """One set of RoPE parameters; `base` is the key of the file that has theta if they do not."""
    if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
        raise file.error(f"one set of RoPE parameters for all layers is supported, found {shown(parameters)}.")
    if parameters.get("partial_rotary_factor", file.values.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise file.error("partial_rotary_factor other than 1 is not supported: RoPE rotates whole heads.")
    theta = file.check_positive(base, parameters.get("rope_theta", file.values[base]))
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta)
    if rope_type not in ("linear", "llama3"):
        raise file.error(
            f"RoPE type {shown(rope_type)} is not supported; supported: 'default', 'linear', 'llama3'. "
            "Removing the scaling from the file limits the model to the context it was first trained for."
        )

    def number(key: str) -> float:
        return file.check_positive(f"rope {key}", parameters.get(key))

    if rope_type == "linear":
        return RopeConfig(theta, "linear", number("factor"))
    low, high = number("low_freq_factor"), number("high_freq_factor")
    file.refuse_if(low >= high, f"rope low_freq_factor {low} must be below high_freq_factor {high}.")
    original = parameters.get("original_max_position_embeddings", file.values.get("max_position_embeddings"))
    if not isinstance(original, int):
        raise file.error(f"rope original_max_position_embeddings must be a whole number, found {shown(original)}.")
    original_length = int(file.check_positive("rope original_max_position_embeddings", original))
    return RopeConfig(theta, "llama3", number("factor"), low, high, original_length)
