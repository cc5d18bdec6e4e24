"""Triton kernels, one idea per file: a plain-torch reference, a wrapper and a kernel, all with one signature. (Decode's
and prefill's reference is one, in `attend_range`; the second launches, which add up splits, check nothing.)

Import names from their files: `from twophase_kernels.paged_decode import paged_decode`. Every module imports without
triton; launching a kernel then raises `KernelsUnavailableError` (see `_triton.mode`).
"""

from twophase_kernels._triton import KernelsUnavailableError, mode

__all__ = ["KernelsUnavailableError", "mode"]
