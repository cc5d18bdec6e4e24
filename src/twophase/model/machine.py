"""The torch device, the dtype and the attention backend with which this machine runs a model."""

import logging
import os

import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.attention.torch_backend import TorchBackend
from twophase.core.errors import BackendUnavailableError, ConfigError
from twophase.doors import feature
from twophase.model.config import ModelConfig
from twophase.model.linear import can_pack

logger = logging.getLogger(__name__)


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
    """The device for a user's option; 'auto' is CUDA where there is one. Raises ConfigError if it cannot be used."""
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


def prefers_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels are the first choice: on CUDA, and on a CPU where the environment names them."""
    return device.type == "cuda" or os.environ.get("TWOPHASE_KERNELS") == "cpu"


def make_backend(
    name: str, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, block_size: int
) -> AttentionBackend:
    """The backend called `name`; 'auto': Triton where kernels are preferred and can run, torch elsewhere. Raises
    BackendUnavailableError, with the reason and the fix, if 'triton' was asked for and cannot run here."""
    if name == "torch" or (name == "auto" and not prefers_kernels(device)):
        return TorchBackend(spec, block_size)
    why_not = feature("triton.available").why_not_triton(device, dtype)
    if why_not is None:
        backend: AttentionBackend = feature("triton.attention").TritonBackend(spec)
        return backend
    if name == "triton":
        raise BackendUnavailableError(f"attention_backend='triton' cannot run here: {why_not}")
    logger.warning("Attention on %s is computed by the torch backend, which is slower: %s", device, why_not)
    return TorchBackend(spec, block_size)
