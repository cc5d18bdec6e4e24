"""One copy of SmolLM2's weights for all engines of a notebook: each would read and hold 0.6 GB of its own otherwise."""

from typing import Any
from unittest.mock import patch

from twophase import LLM, assembly
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.advanced.prefix_service import shared_engine


def open_llm(model: Any = DEFAULT_MODEL, **options: Any) -> LLM:
    """An LLM; of SmolLM2, with the weights of `shared_engine`, which no engine changes. They are not read again."""
    if model != DEFAULT_MODEL:
        return LLM(model, **options)
    with patch.object(assembly, "load_weights", return_value=shared_engine().model.weights):
        return LLM(model, **options)
