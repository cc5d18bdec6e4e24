"""Choosing the attention backend for a machine."""

from typing import Literal

import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.attention.torch_backend import TorchBackend
from twophase.core.errors import BackendUnavailableError, ConfigError

BackendName = Literal["auto", "torch", "triton"]


def make_backend(
    name: str, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, block_size: int
) -> AttentionBackend:
    """The backend called `name`; 'auto' takes Triton on CUDA where it is installed, torch everywhere else.

    Raises:
        ConfigError: no backend has that name.
        BackendUnavailableError: 'triton' was asked for and cannot run here; says why and what to do.
    """
    if name not in ("auto", "torch", "triton"):
        raise ConfigError(f"attention_backend must be 'auto', 'torch' or 'triton', got {name!r}.")
    if name == "torch":
        return TorchBackend(spec, block_size)
    from twophase_kernels._triton import KernelsUnavailableError, mode

    try:
        how = mode()
    except KernelsUnavailableError as error:
        if name == "auto":
            return TorchBackend(spec, block_size)
        raise BackendUnavailableError(f"attention_backend='triton' cannot run here: {error}") from error
    if name == "auto" and (how == "interpreted" or device.type != "cuda"):
        return TorchBackend(spec, block_size)
    if how == "interpreted" and (device.type != "cpu" or dtype == torch.bfloat16):
        raise BackendUnavailableError(
            f"Triton is in interpreter mode (TRITON_INTERPRET is set), which runs float32 and float16 on the CPU; "
            f"got {dtype} on {device}. Use dtype='float32', device='cpu', or unset TRITON_INTERPRET."
        )
    if how == "compiled" and device.type != "cuda":
        raise BackendUnavailableError(
            f"Compiled Triton kernels need a CUDA device, got device {str(device)!r}. Use attention_backend='torch', "
            f"or set TRITON_INTERPRET=1 before Python starts to run the kernels in Triton's interpreter."
        )
    from twophase.attention.triton_backend import TritonBackend

    return TritonBackend(spec)
