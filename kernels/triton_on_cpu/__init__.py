"""Triton kernels on any CPU: compiled from Triton's own intermediate code into C, at native speed, unmodified.

    import triton_on_cpu
    triton_on_cpu.install()                      # in this process kernels take CPU tensors from here on

    kernel[grid](x, y, n, BLOCK=1024)            # any @triton.jit function

    with triton_on_cpu.checked(time_limit_s=5):  # while a kernel is being written: a wrong access or an endless loop
        kernel[grid](x, y, n, BLOCK=1024)        # is a Python error that names the line, the program and the index

    with triton_on_cpu.record() as step:         # many launches ...
        kernel[grid](x, y, n, BLOCK=1024)
        other[grid](y, z, n, BLOCK=1024)
    step.replay()                                # ... repeated by one call, on the same tensors

It needs Triton, torch and a C compiler: gcc or clang, the compiler in the variable CC, or the PyPI package ziglang.
Compiled kernels are kept in Triton's cache. A program is one thread, so that a GPU program's races, barriers and shared
memory have no counterpart. docs/cpu.md lists the unsupported operations, and measurements.
"""

from triton_on_cpu.driver import CpuDriver, checked, install, uninstall
from triton_on_cpu.errors import (
    AssertionFailedError,
    CompilerError,
    CompilerMissingError,
    KernelFault,
    OutOfBoundsError,
    TimeLimitError,
    TritonOnCpuError,
)
from triton_on_cpu.pool import num_threads, set_num_threads
from triton_on_cpu.recording import Recording, record
from triton_on_cpu.ttir import NotSupportedError

__all__ = [
    "AssertionFailedError",
    "CompilerError",
    "CompilerMissingError",
    "CpuDriver",
    "KernelFault",
    "NotSupportedError",
    "OutOfBoundsError",
    "Recording",
    "TimeLimitError",
    "TritonOnCpuError",
    "checked",
    "install",
    "num_threads",
    "record",
    "set_num_threads",
    "uninstall",
]
