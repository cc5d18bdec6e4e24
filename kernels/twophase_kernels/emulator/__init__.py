"""Executes the PTX that Triton compiles, without a GPU.

`emulate(kernel, grid, args)` runs one kernel; within `emulated("sm_90")` every wrapper of this package runs on CPU
tensors. See docs/emulator.md for the memory model and for what is not covered.
"""

from twophase_kernels.emulator.driver import EmulatingDriver, emulate, emulated
from twophase_kernels.emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from twophase_kernels.emulator.process import CompilingProcess

__all__ = [
    "CompilingProcess",
    "EmulatingDriver",
    "EmulationError",
    "MemoryFault",
    "NotCoveredError",
    "RaceError",
    "emulate",
    "emulated",
]
