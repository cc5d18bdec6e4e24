"""The torch device and dtype for a user's options."""

import torch

from twophase.core.errors import ConfigError
from twophase.model.config import ModelConfig
from twophase.model.linear import can_pack


def resolve_dtype(option: str, config: ModelConfig, device: torch.device, is_quantized: bool = False) -> torch.dtype:
    """The torch dtype for a user's `dtype`: 'auto' is the dtype of the saved weights, but fp32 on a CPU.

    With quantised weights it is bf16 on a CPU that multiplies bf16, because torch's int4 operator requires bf16.
    """
    if option == "auto" and device.type == "cpu":
        option = "bfloat16" if is_quantized and can_pack(torch.bfloat16) else "float32"
    elif option == "auto":
        option = config.dtype or "float32"
    dtype: torch.dtype = getattr(torch, option)
    return dtype


def resolve_device(option: str | torch.device) -> torch.device:
    """The device for a user's option; 'auto' is CUDA where there is one.

    Raises:
        ConfigError: No such device, or a kind of device that this engine does not run on.
    """
    if option == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(option)
    except RuntimeError as error:
        raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {option!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"the engine runs on 'cpu' and 'cuda', got device {option!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {str(option)!r} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices here; "
            f"use device='cpu', or run `twophase doctor` to see why."
        )
    return device
