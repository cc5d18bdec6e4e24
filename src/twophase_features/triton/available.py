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
            f"Triton kernels are interpreted, {_triton.reason()}: that runs float32 and float16 on the CPU, got "
            f"{dtype} on {device}. Use dtype='float32' and device='cpu'; or install a C compiler and unset "
            "TRITON_INTERPRET and TWOPHASE_KERNELS, which compiles kernels, bfloat16 too."
        )
    if how == "cuda" and device.type != "cuda":
        return (
            f"Triton kernels are compiled for a GPU, got device {str(device)!r}. Use attention_backend='torch', or set "
            "TWOPHASE_KERNELS=cpu before Python starts to compile them for the CPU."
        )
    if how == "cpu" and device.type != "cpu":
        return (
            f"Triton kernels are compiled for the CPU, {_triton.reason()}; got device {str(device)!r}. "
            "Set TWOPHASE_KERNELS=cuda before Python starts to compile them for a GPU."
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
