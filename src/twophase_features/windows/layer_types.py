"""Which layers of a model see a window of the keys: read from config.json, family by family."""

from collections.abc import Sequence
from typing import Any

from twophase.core.rules import shown
from twophase.model.config import num_layers_of
from twophase.model.json_file import COUNT, Fields, JsonFile

LAYER_TYPES = ("full_attention", "sliding_attention")
FULL, SLIDING = LAYER_TYPES


def fields_of(file: JsonFile, types: Sequence[str]) -> Fields:
    """`sliding_window` and `layer_types` of a `ModelConfig`, from the type of each layer. Raises ModelFolderError if
    the window is not a positive number."""
    has_window, window = SLIDING in types, file.values.get("sliding_window")
    if has_window or window is not None:
        window = file.positive_int("sliding_window")
    return {
        "sliding_window": window if has_window else None,
        "layer_types": tuple(types) if len(set(types)) > 1 else (),
    }


def given_types(file: JsonFile) -> list[str] | None:
    """`layer_types` of the file, if it has them. Raises ModelFolderError for another kind or number of layers."""
    given, num_layers = file.values.get("layer_types"), num_layers_of(file)
    if given is not None and not (
        isinstance(given, list) and len(given) == num_layers and all(kind in LAYER_TYPES for kind in given)
    ):
        raise file.error(
            f"layer_types must be {num_layers} times one of {', '.join(LAYER_TYPES)}; found {_summary(given)}."
        )
    return given


def read_given_window(file: JsonFile) -> Fields:
    """Mistral and Mixtral: a window for all layers, in `sliding_window` if at all."""
    given_types(file)  # which must be valid, and say nothing more
    return fields_of(file, [FULL if file.values.get("sliding_window") is None else SLIDING] * num_layers_of(file))


def read_switched_window(file: JsonFile) -> Fields:
    """Qwen2 and Qwen3: behind `use_sliding_window`, for every layer but the first `max_window_layers`."""
    num_full, given = file.read("max_window_layers", COUNT), given_types(file)
    default = [FULL if layer < num_full else SLIDING for layer in range(num_layers_of(file))]
    return _switched(file, given, default if given is None else given)


def read_switched_for_all(file: JsonFile) -> Fields:
    """Qwen3-MoE: transformers gives every layer of this family the window, and did not always: so no key may say
    otherwise."""
    num_full, given = file.read("max_window_layers", COUNT), given_types(file)
    file.refuse_if(
        file.flag("use_sliding_window") and (num_full or given is not None),
        "a sliding window is supported for all layers of this architecture or for none, so with use_sliding_window "
        "max_window_layers must be 0 and layer_types absent.",
    )
    return _switched(file, given, [SLIDING] * num_layers_of(file))


def _switched(file: JsonFile, given: list[str] | None, types: list[str]) -> Fields:
    if file.flag("use_sliding_window"):
        return fields_of(file, types)
    file.refuse_if(SLIDING in (given or ()), "layer_types has sliding_attention, but the model has no sliding window.")
    return fields_of(file, [FULL] * num_layers_of(file))


def _summary(values: Any) -> str:
    """The different values of a list, and how many it has."""
    different = list(dict.fromkeys(map(shown, values))) if isinstance(values, list) else [shown(values)]
    return f"{len(values) if isinstance(values, list) else 1} of {', '.join(different)}"[:200]
