"""Errors of kernels that are compiled for a CPU, or run there."""


class TritonOnCpuError(RuntimeError):
    """Any failure to compile or run a kernel on the CPU; the message gives the reason and the fix."""


class CompilerError(TritonOnCpuError):
    """The C compiler failed, was killed, or made a library that does not load."""


class CompilerMissingError(CompilerError):
    """There is no C compiler on this machine. Triton's interpreter (TRITON_INTERPRET=1) needs none."""


class KernelFault(TritonOnCpuError):
    """A checked kernel was stopped. Its writes until then remain; the process is unharmed."""


class OutOfBoundsError(KernelFault, IndexError):
    """A checked kernel read or wrote outside the tensors that it was given."""


class AssertionFailedError(KernelFault, AssertionError):
    """A `tl.device_assert` of a checked kernel did not hold."""


class TimeLimitError(KernelFault, TimeoutError):
    """A checked kernel was still running when its time was over."""
