"""One copy of SmolLM2's weights for all engines of a notebook: each would hold 0.6 GB of its own otherwise."""

from typing import Any

from twophase import LLM
from twophase.model.prepare import DEFAULT_MODEL
from twophase_labs.advanced.prefix_service import shared_engine


def open_llm(model: Any = DEFAULT_MODEL, **options: Any) -> LLM:
    """An LLM; of SmolLM2, with the weights of `shared_engine`, which no engine changes."""
    llm = LLM(model, **options)
    if model == DEFAULT_MODEL:
        llm.model.weights = shared_engine().model.weights
    return llm
