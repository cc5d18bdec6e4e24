"""Triton in a notebook: the same cell is compiled on a GPU and interpreted without one.

    from twophase.workbook.kernels import device, tl, triton

Import it before anything that imports triton: which of the two happens is fixed when triton is first imported.
"""

import os
import sys

import torch

if "triton" not in sys.modules and torch.cuda.device_count() == 0:
    os.environ.setdefault("TRITON_INTERPRET", "1")

from twophase_kernels._triton import INTERPRET_ON, KernelsUnavailableError, mode, tl, triton

__all__ = ["device", "how_kernels_run", "tl", "triton"]


def _device() -> torch.device:
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in INTERPRET_ON
    return torch.device("cpu" if interpreted or torch.cuda.device_count() == 0 else "cuda")


device = _device()  # where a kernel's tensors have to be


def how_kernels_run() -> str:
    """One sentence for the notebook: compiled, interpreted, or why not at all."""
    try:
        how = mode()
    except KernelsUnavailableError as error:
        return f"Triton kernels are not run here: {error}"
    if how == "compiled":
        return f"Triton kernels are compiled, for {torch.cuda.get_device_name()}."
    return "Triton kernels are interpreted on the CPU: the same results, much more slowly."
