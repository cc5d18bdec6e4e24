"""Attention by Triton kernels: the default on CUDA.

Public: `attention` (the backend), `available` (whether the kernels run on a device).
"""
