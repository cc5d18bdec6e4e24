"""Choosing the attention backend for a machine."""

import logging

import torch

from twophase.attention.interface import AttentionBackend, AttentionSpec
from twophase.attention.torch_backend import FUSED_SEQS, TorchBackend
from twophase.core.errors import BackendUnavailableError

MIN_CAPABILITY = (8, 0)  # Triton's minimum for NVIDIA GPUs

logger = logging.getLogger(__name__)


def make_backend(
    name: str, spec: AttentionSpec, *, device: torch.device, dtype: torch.dtype, block_size: int
) -> AttentionBackend:
    """The backend called `name`; 'auto' takes Triton on CUDA, torch everywhere else, and says so if Triton cannot run.

    Raises:
        BackendUnavailableError: 'triton' was asked for and cannot run here; names the reason and the fix.
    """
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        is_slow_in_parts = device.type == "cpu" and dtype != torch.float32
        return TorchBackend(spec, block_size, fused_seqs=FUSED_SEQS if is_slow_in_parts else 0)
    why_not = _why_not_triton(device, dtype)
    if why_not is None:
        from twophase.attention.triton_backend import TritonBackend

        return TritonBackend(spec)
    if name == "triton":
        raise BackendUnavailableError(f"attention_backend='triton' cannot run here: {why_not}")
    logger.warning("Attention on %s is computed by the torch backend, which is slower: %s", device, why_not)
    return TorchBackend(spec, block_size)


def runs_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton's kernels can run on `device`."""
    return _why_not_triton(device, dtype) is None


def _why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why Triton's kernels cannot run on `device`, and the fix; None: they can."""
    from twophase_kernels._triton import KernelsUnavailableError, mode

    try:
        how = mode()
    except KernelsUnavailableError as error:
        return str(error)
    if how == "interpreted" and (device.type != "cpu" or dtype == torch.bfloat16):
        return (
            f"Triton is in interpreter mode (TRITON_INTERPRET is set), which runs float32 and float16 on the CPU; "
            f"got {dtype} on {device}. Use dtype='float32', device='cpu', or unset TRITON_INTERPRET."
        )
    if how == "compiled" and device.type != "cuda":
        return (
            f"Compiled Triton kernels need a CUDA device, got device {str(device)!r}. Use attention_backend='torch', "
            f"or set TRITON_INTERPRET=1 before Python starts to run the kernels in Triton's interpreter."
        )
    if device.type == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < MIN_CAPABILITY:
            return (
                f"Triton supports GPUs of compute capability {_dotted(MIN_CAPABILITY)} (Ampere) or newer, and {device} "
                f"has {_dotted(capability)}. Use attention_backend='torch'."
            )
    return None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
