"""A model folder, opened: configuration, weights and attention put together."""

from pathlib import Path

import torch

from twophase.attention.select import make_backend
from twophase.core.errors import ConfigError
from twophase.model.config import ModelConfig, load_config
from twophase.model.llama import LlamaModel, attention_spec
from twophase.model.weights import load_weights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attention_backend: str = "auto",
    block_size: int = 16,
    max_model_len: int | None = None,
) -> LlamaModel:
    """Open a Hugging Face folder for running with the attention backend of that name.

    Raises:
        ModelFolderError: The folder is missing, broken or not supported.
        ConfigError, BackendUnavailableError: No such backend, or it cannot run here.
    """
    config = load_config(folder)
    backend = make_backend(attention_backend, attention_spec(config), device=device, dtype=dtype, block_size=block_size)
    return LlamaModel(config, load_weights(folder, config, dtype, device), backend, max_model_len)


def resolve_dtype(option: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The torch dtype for a user's `dtype`: 'auto' is what the weights were saved in, but fp32 on a CPU.

    Raises:
        ConfigError: Any other name than 'auto', 'float32', 'float16' and 'bfloat16'.
    """
    if option not in ("auto", *DTYPES):
        raise ConfigError(f"dtype must be one of auto, {', '.join(DTYPES)}; got {option!r}.")
    if option == "auto":
        option = "float32" if device.type == "cpu" else config.dtype or "float32"
    return DTYPES[option]
