"""Which GPU (or CPU) this is, as far as tiles, instructions and split counts depend on it."""

from functools import lru_cache
from typing import Literal

import torch

from twophase_kernels._triton import mode, triton

# Determines tiles and instructions. hopper: sm_90 to sm_110, asynchronous matrix instructions (wgmma, tcgen05). ampere:
# mma.sync; ada, sm_89 and sm_120: likewise, and fp8 is converted in hardware. cdna: AMD. cpu: this CPU,
# compiled or interpreted.
Generation = Literal["cpu", "ampere", "ada", "hopper", "cdna"]


def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors (SMs) of a GPU; 1 for a CPU, which needs no more programs than it has sequences and heads."""
    if device.type == "meta":  # compiled ahead of time, for a GPU whose stand-in driver may say
        return getattr(triton.runtime.driver.active, "num_multiprocessors", 1)
    return _multiprocessors_of_device(device)


@lru_cache
def _multiprocessors_of_device(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def gpu_generation(device: torch.device) -> Generation:
    """Which column of the tile tables applies to kernels that run on `device`."""
    if device.type == "cpu" and mode() != "emulated":
        return "cpu"
    if device.type in ("cpu", "meta"):  # emulated, or compiled ahead of time: the GPU of Triton's driver
        target = triton.runtime.driver.active.get_current_target()
        return "cdna" if target.backend == "hip" else _generation_of_capability(target.arch)
    return _generation_of_device(device)


@lru_cache
def _generation_of_device(device: torch.device) -> Generation:
    if torch.version.hip:
        return "cdna"
    major, minor = torch.cuda.get_device_capability(device)
    return _generation_of_capability(10 * major + minor)


def _generation_of_capability(capability: int) -> Generation:
    if 90 <= capability < 120:
        return "hopper"
    return "ampere" if capability < 89 else "ada"
