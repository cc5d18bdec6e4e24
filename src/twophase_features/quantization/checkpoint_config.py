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
    readers = {"compressed-tensors": _read_compressed, "awq": _read_awq, "gptq": _read_gptq}
    _require(values, "quant_method", tuple(readers), "weights")
    return readers[values["quant_method"]](values)


def _read_awq(values: Mapping[str, Any]) -> CheckpointFormat:
    values = {"bits": values.get("w_bit"), "group_size": values.get("q_group_size"), **values}
    _require(values, "version", (None, "gemm", "GEMM"), "AWQ")
    _require(values, "zero_point", (None, True), "AWQ")
    _require(values, "bits", (4,), "AWQ")
    return CheckpointFormat("awq", Scheme(4, _group_size(values), is_symmetric=False))


def _read_gptq(values: Mapping[str, Any]) -> CheckpointFormat:
    _require(values, "bits", (4, 8), "GPTQ")
    _require(values, "checkpoint_format", (None, "gptq", "gptq_v2"), "GPTQ")
    if values.get("dynamic"):
        raise ValueError("GPTQ with other settings for some layers ('dynamic') is not supported")
    scheme = Scheme(values["bits"], _group_size(values), is_symmetric=False)
    return CheckpointFormat("gptq", scheme, has_shifted_zeros=values.get("checkpoint_format") != "gptq_v2")


def _read_compressed(values: Mapping[str, Any]) -> CheckpointFormat:
    name, groups = values.get("format"), values.get("config_groups")
    _require(values, "format", COMPRESSED_FORMATS, "compressed-tensors")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise ValueError(f"compressed-tensors with one entry of config_groups is supported, found {shown(groups)}")
    if values.get("kv_cache_scheme") is not None:
        raise ValueError("a kv_cache_scheme is not supported; take kv_cache_dtype to store K and V in fewer bits")
    for key in ("sparsity_config", "transform_config"):
        if values.get(key):
            raise ValueError(f"compressed-tensors with a {key} is not supported")
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ValueError(f"compressed-tensors must say how weights are stored, found {shown(group)}")
    _require(group, "targets", (["Linear"],), "compressed-tensors")
    _require(group, "output_activations", (None,), "compressed-tensors")
    _require(weights, "strategy", ("group", "channel"), "weights")
    is_float, is_packed = _is_float(weights), name == "pack-quantized"
    if is_float != (name == "float-quantized"):
        raise ValueError(f"weights of type {shown(weights.get('type'))} contradict the format {shown(name)}")
    _require(weights, "num_bits", (4, 8) if is_packed else (8,), f"{name} weights")
    scheme = Scheme(
        weights["num_bits"],
        _group_size(weights) if weights["strategy"] == "group" else None,
        is_symmetric=weights.get("symmetric") is not False,
        is_float=is_float,
        activations=_activations(group.get("input_activations")),
    )
    return CheckpointFormat("compressed-tensors", scheme, is_packed=is_packed)


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
    _require(values, "type", ("int", "float"), "weights or activations")
    return bool(values["type"] == "float")


def _group_size(values: Mapping[str, Any]) -> int | None:
    """-1 is how these tools write a group of all inputs."""
    value = values.get("group_size")
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise ValueError(f"group_size must be a whole number of at least 1, or -1, found {shown(value)}")
    return None if value == -1 else value


def _require(values: Mapping[str, Any], key: str, supported: tuple[Any, ...], of: str) -> None:
    """Raises ValueError for a value that is not supported; None among these is an absent key. True is not 1."""
    found = values.get(key)
    if not any(found == each and isinstance(found, bool) == isinstance(each, bool) for each in supported):
        names = [shown(each) for each in supported if each is not None]
        only = f"supported: {', '.join(names)}" if names else "leave it out"
        raise ValueError(f"{key} {shown(found)} of {of} is not supported; {only}")
