"""Attention by Triton kernels: the default on CUDA."""
