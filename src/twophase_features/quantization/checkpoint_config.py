"""The format of a folder's quantised weights: `quantization_config` in config.json, read strictly.

Read: compressed-tensors (pack-quantized, int-quantized, float-quantized), AWQ (gemm) and GPTQ, of 4 or 8 bits. Other
    formats are refused by name. Nothing heavy is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twophase.core.rules import shown
from twophase.model.json_file import Fields, JsonFile
from twophase_features.quantization.schemes import Scheme

METHODS = ("compressed-tensors", "awq", "gptq")
COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "float-quantized")


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """How a folder stores the weights of its linear layers; layers without packed tensors are plain.

    Attributes:
        method: The tool that wrote the folder, which determines the tensors' names.
        scheme: How weights were rounded.
        is_packed: compressed-tensors: whether several codes lie in an int32.
        has_shifted_zeros: GPTQ's first format, which stores zero points less 1.
    """

    method: Literal["compressed-tensors", "awq", "gptq"]
    scheme: Scheme
    is_packed: bool = True
    has_shifted_zeros: bool = False


def read(file: JsonFile) -> Fields:
    """`quantization` of a `ModelConfig`. Raises ModelFolderError for a format that is not supported."""
    try:
        found = file.values.get("quantization_config") or file.values["compression_config"]
        return {"quantization": read_quantization_config(found)}
    except ValueError as error:
        raise file.error(f"{error}. Use the unquantised model.") from error


def read_quantization_config(values: Any) -> CheckpointFormat:
    """The `quantization_config` of a config.json.

    Raises:
        ValueError: The format is not supported; names the value and the supported ones.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"quantization_config must be an object, found {shown(values)}")
    method = values.get("quant_method")
    if method == "compressed-tensors":
        return _read_compressed(values)
    if method == "awq":
        return _read_awq(values)
    if method == "gptq":
        return _read_gptq(values)
    raise ValueError(f"quant_method {shown(method)} is not supported; supported: {', '.join(METHODS)}")


def _read_awq(values: Mapping[str, Any]) -> CheckpointFormat:
    version = values.get("version", "gemm")
    if str(version).lower() != "gemm":
        raise ValueError(f"AWQ in the layout {shown(version)} is not supported, only 'gemm'")
    _must_be(values, "zero_point", True, "AWQ")
    bits = values.get("bits", values.get("w_bit"))
    if bits != 4:
        raise ValueError(f"AWQ of {shown(bits)} bits is not supported, only 4")
    return CheckpointFormat("awq", Scheme(4, _group_size(values.get("group_size", values.get("q_group_size"))), False))


def _read_gptq(values: Mapping[str, Any]) -> CheckpointFormat:
    bits, checkpoint_format = values.get("bits"), values.get("checkpoint_format", "gptq")
    if bits not in (4, 8) or isinstance(bits, bool):
        raise ValueError(f"GPTQ of {shown(bits)} bits is not supported, only 4 and 8")
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise ValueError(f"GPTQ's checkpoint_format {shown(checkpoint_format)} is not supported")
    if values.get("dynamic"):
        raise ValueError("GPTQ with other settings for some layers ('dynamic') is not supported")
    scheme = Scheme(bits, _group_size(values.get("group_size")), is_symmetric=False)
    return CheckpointFormat("gptq", scheme, has_shifted_zeros=checkpoint_format == "gptq")


def _read_compressed(values: Mapping[str, Any]) -> CheckpointFormat:
    name, groups = values.get("format"), values.get("config_groups")
    if name not in COMPRESSED_FORMATS:
        raise ValueError(
            f"compressed-tensors in the format {shown(name)} is not supported; supported: "
            f"{', '.join(COMPRESSED_FORMATS)}"
        )
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise ValueError(f"compressed-tensors with one entry of config_groups is supported, found {shown(groups)}")
    if values.get("kv_cache_scheme") is not None:
        raise ValueError("a kv_cache_scheme is not supported; take kv_cache_dtype to store K and V in fewer bits")
    for key in ("sparsity_config", "transform_config"):
        if values.get(key):
            raise ValueError(f"compressed-tensors with a {key} is not supported")
    (group,) = groups.values()
    if not isinstance(group, Mapping) or group.get("targets") != ["Linear"]:
        raise ValueError(f"compressed-tensors for targets ['Linear'] is supported, found {shown(group)}")
    if group.get("output_activations") is not None:
        raise ValueError("quantised output_activations are not supported")
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise ValueError(f"compressed-tensors must say how weights are stored, found {shown(weights)}")
    is_float = _is_float(weights)
    if is_float != (name == "float-quantized"):
        raise ValueError(f"weights of type {shown(weights.get('type'))} contradict the format {shown(name)}")
    bits, strategy = weights.get("num_bits"), weights.get("strategy")
    if bits not in (4, 8) or (is_float and bits != 8) or (name == "int-quantized" and bits != 8):
        raise ValueError(f"{shown(name)} weights of {shown(bits)} bits are not supported, only 8, and 4 if packed")
    if strategy not in ("group", "channel"):
        raise ValueError(f"weights with a scale per {shown(strategy)} are not supported, only per group or channel")
    scheme = Scheme(
        bits,
        _group_size(weights.get("group_size")) if strategy == "group" else None,
        is_symmetric=weights.get("symmetric") is not False,
        is_float=is_float,
        activations=_activations(group.get("input_activations")),
    )
    return CheckpointFormat("compressed-tensors", scheme, is_packed=name == "pack-quantized")


def _activations(values: Any) -> str | None:
    if values is None:
        return None
    wanted = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
    if not isinstance(values, Mapping) or any(values.get(key) != value for key, value in wanted.items()):
        raise ValueError(
            "input_activations are supported in 8 bits, symmetric, with a dynamic scale per token; found "
            f"{shown(values)}"
        )
    return "fp8" if _is_float(values) else "int8"


def _is_float(values: Mapping[str, Any]) -> bool:
    if values.get("type") not in ("int", "float"):
        raise ValueError(f"type must be 'int' or 'float', found {shown(values.get('type'))}")
    return bool(values["type"] == "float")


def _group_size(value: Any) -> int | None:
    """-1 is how these tools write a group of all inputs."""
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise ValueError(f"group_size must be a whole number of at least 1, or -1, found {shown(value)}")
    return None if value == -1 else value


def _must_be(values: Mapping[str, Any], key: str, wanted: Any, method: str) -> None:
    if values.get(key, wanted) != wanted:
        raise ValueError(f"{method} with {key} {shown(values[key])} is not supported, only {wanted!r}")
