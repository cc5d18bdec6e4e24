"""Which layers of a model see a window of the keys: read from config.json, family by family."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twophase.core.rules import shown
from twophase.model.config import num_layers_of
from twophase.model.json_file import Fields, JsonFile

LAYER_TYPES = ("full_attention", "sliding_attention")
FULL, SLIDING = LAYER_TYPES


def read(file: JsonFile) -> Fields:
    """`sliding_window` and `layer_types` of a `ModelConfig`.

    Raises:
        ModelFolderError: The file asks for another kind of layer, or says two things; names both.
    """
    return fields_of(file, KINDS[file.values["model_type"]](file, given_types(file)))


def fields_of(file: JsonFile, types: Sequence[str]) -> Fields:
    """The same two fields, from the type of each layer."""
    has_window, window = SLIDING in types, file.values["sliding_window"]
    if has_window or window is not None:
        window = file.positive_int("sliding_window")
    return {
        "sliding_window": window if has_window else None,
        "layer_types": tuple(types) if len(set(types)) > 1 else (),
    }


def given_types(file: JsonFile) -> list[str] | None:
    """`layer_types` of the file, if it has them."""
    given, num_layers = file.values.get("layer_types"), num_layers_of(file)
    if given is not None and not (
        isinstance(given, list) and len(given) == num_layers and all(kind in LAYER_TYPES for kind in given)
    ):
        raise file.error(
            f"layer_types must be {num_layers} times one of {', '.join(LAYER_TYPES)}; found {_summary(given)}."
        )
    return given


def _no_layer(file: JsonFile, given: list[str] | None) -> list[str]:
    file.refuse_if(SLIDING in (given or ()), "layer_types has sliding_attention, but the model has no sliding window.")
    return [FULL] * num_layers_of(file)


def _all_layers(file: JsonFile, given: list[str] | None) -> list[str]:
    return [FULL if file.values.get("sliding_window") is None else SLIDING] * num_layers_of(file)


def _last_layers(file: JsonFile, given: list[str] | None) -> list[str]:
    """Every layer but the first `max_window_layers`."""
    if not file.flag("use_sliding_window"):
        return _no_layer(file, given)
    num_full = file.whole_number("max_window_layers")
    default = [FULL if layer < num_full else SLIDING for layer in range(num_layers_of(file))]
    return default if given is None else given


def _all_or_no_layers(file: JsonFile, given: list[str] | None) -> list[str]:
    """transformers gives every layer of this family the window, and did not always: so no key may say otherwise."""
    if not file.flag("use_sliding_window"):
        return _no_layer(file, given)
    file.refuse_if(
        file.whole_number("max_window_layers") or given is not None,
        "a sliding window is supported for all layers of this architecture or for none, so with use_sliding_window "
        "max_window_layers must be 0 and layer_types absent.",
    )
    return [SLIDING] * num_layers_of(file)


KINDS: Mapping[str, Callable[[JsonFile, list[str] | None], list[str]]] = {
    "mistral": _all_layers,
    "mixtral": _all_layers,
    "qwen2": _last_layers,
    "qwen3": _last_layers,
    "qwen3_moe": _all_or_no_layers,
}


def _summary(values: Any) -> str:
    """The different values of a list, and how many it has."""
    different = list(dict.fromkeys(map(shown, values))) if isinstance(values, list) else [shown(values)]
    return f"{len(values) if isinstance(values, list) else 1} of {', '.join(different)}"[:200]
