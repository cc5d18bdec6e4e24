"""Whether Triton's kernels run on a device."""

import torch

from twophase_kernels import KernelsUnavailableError, _triton

MIN_CAPABILITY = (8, 0)  # Triton's minimum for NVIDIA GPUs


def runs_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton's kernels can run on `device`."""
    return why_not_triton(device, dtype) is None


def why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why Triton's kernels cannot run on `device`, and the fix; None: they can."""
    try:
        how = _triton.mode()
    except KernelsUnavailableError as error:
        return str(error)
    if how == "interpreted" and (device.type != "cpu" or dtype == torch.bfloat16):
        return (
            f"Triton is in interpreter mode (TRITON_INTERPRET is set), which runs float32 and float16 on the CPU; "
            f"got {dtype} on {device}. Use dtype='float32', device='cpu', or unset TRITON_INTERPRET."
        )
    if how == "cuda" and device.type != "cuda":
        return (
            f"Compiled Triton kernels need a CUDA device, got device {str(device)!r}. Use attention_backend='torch', "
            f"or set TRITON_INTERPRET=1 before Python starts to run the kernels in Triton's interpreter."
        )
    if how == "cpu" and device.type != "cpu":
        return f"Triton kernels are compiled for the CPU (TWOPHASE_KERNELS=cpu), got device {str(device)!r}."
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
