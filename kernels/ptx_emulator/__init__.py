"""Executes the PTX that Triton compiles, without a GPU.

`emulate(kernel, grid, args)` runs one kernel; within `emulated("sm_90")` every wrapper of this package runs on CPU
tensors. `inspect_kernel` counts the compiled code's instructions, memory requests and registers. See docs/emulator.md
for the memory model and the instructions that are not covered.
"""

from ptx_emulator.driver import EmulatingDriver, emulate, emulated
from ptx_emulator.errors import EmulationError, MemoryFault, NotCoveredError, RaceError
from ptx_emulator.inspection import KernelReport, inspect_call, inspect_in, inspect_kernel
from ptx_emulator.process import CompilingProcess

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
