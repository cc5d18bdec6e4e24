"""Executes the PTX that Triton compiles, without a GPU.

`emulate(kernel, grid, args)` runs one kernel; within `emulated("sm_90")` every wrapper of this package runs on CPU
tensors. `inspect_kernel` counts the compiled code's instructions, memory requests and registers. See docs/emulator.md
for the memory model and the instructions that are not covered.
"""

from twophase_kernels.emulator.driver import EmulatingDriver, emulate, emulated
from twophase_kernels.emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from twophase_kernels.emulator.inspection import KernelReport, inspect_call, inspect_in, inspect_kernel
from twophase_kernels.emulator.process import CompilingProcess

__all__ = [
    "CompilingProcess",
    "EmulatingDriver",
    "EmulationError",
    "KernelReport",
    "MemoryFault",
    "NotCoveredError",
    "RaceError",
    "emulate",
    "emulated",
    "inspect_call",
    "inspect_in",
    "inspect_kernel",
]
